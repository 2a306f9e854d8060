"""The cache returns what was read, or nothing: whatever happened to the files or to itself."""

import os
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profkit.errors import TooLargeError
from profkit.model.events import EventTable, MemoryTable, SparseColumn
from profkit.model.trace import Trace
from profkit.readers import cache
from profkit.readers.cache import Cache, Entry, Key
from profkit.readers.kineto import cached
from profkit.readers.kineto.cached import decode_trace, encode_trace, read_trace
from profkit.readers.kineto.read import read_kineto
from profkit.readers.progress import OnProgress, Stages
from profkit.readers.stored_value import NotValidError
from profkit.testing import TraceBuilder
from tests.cached import use_cache

RECORDED = sorted((Path(__file__).parents[2] / "traces").glob("*/*.pt.trace.json.gz"))


def columns(table: EventTable | MemoryTable) -> dict[str, Any]:
    """Every column with its type, sparse ones as two; names and lanes as they are."""
    columns: dict[str, Any] = {}
    for field in fields(table):
        value = getattr(table, field.name)
        if isinstance(value, SparseColumn):
            columns[field.name] = (
                value.rows.tolist(),
                value.values.tolist(),
                value.values.dtype.kind,
            )
        elif isinstance(value, np.ndarray):
            columns[field.name] = (value.tolist(), value.dtype)
        else:
            columns[field.name] = value
    return columns


def same(one: Trace, other: Trace) -> bool:
    bare = [replace(trace, events=None, memory=None) for trace in (one, other)]  # type: ignore[arg-type]
    return (
        bare[0] == bare[1]
        and columns(one.events) == columns(other.events)
        and columns(one.memory) == columns(other.memory)
    )


def program(kernel: str = "gemm") -> TraceBuilder:
    b = TraceBuilder(stacks=True, memory=True)
    for _ in range(3):
        with b.step(), b.frame("train.py", 10, "train_step"):
            b.launch("aten::mm", kernel=kernel, host_ns=5_000, device_ns=20_000)
            b.alloc(512)
    return b


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return use_cache(tmp_path / "cache", monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return program().write(tmp_path / "a.pt.trace.json")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the files that were read, and not mapped."""
    written: list[Path] = []

    def read(place: Path, limit_bytes: int | None, _: OnProgress | None) -> Trace:
        written.append(place)
        return read_kineto(place, limit_bytes)

    monkeypatch.setattr(cached, "read_kineto", read)
    return written


def entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda path: path.parent.name)
def test_a_recorded_trace_is_the_same_from_the_cache(
    recorded: Path, folder: Path, reads: list[Path]
) -> None:
    first, second = read_trace(recorded), read_trace(recorded)
    assert same(first, second)
    assert same(second, read_kineto(recorded))
    assert not second.events.ts_ns.flags.writeable
    assert (len(reads), len(entries(folder))) == (1, 1)


def test_a_second_look_names_the_path_that_was_given(
    path: Path, folder: Path, reads: list[Path]
) -> None:
    read_trace(path)
    moved = path.rename(path.with_name("b.pt.trace.json"))
    trace = read_trace(moved)
    # A renamed file has another time of change, so that it is read again.
    assert (trace.path, reads) == (str(moved), [path, moved])
    assert read_trace(moved).path == str(moved)
    assert len(entries(folder)) == 2


def test_a_small_file_is_not_cached(
    path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MIN_TEXT_BYTES", path.stat().st_size + 1)
    read_trace(path)
    assert not folder.exists()
    monkeypatch.setattr(cache, "MIN_TEXT_BYTES", path.stat().st_size)
    read_trace(path)
    assert len(entries(folder)) == 1


def test_a_file_that_was_just_written_is_not_cached(
    path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "SETTLED_NS", 3_600_000_000_000)
    assert same(read_trace(path), read_trace(path))
    assert not folder.exists()


def test_a_file_that_is_written_while_it_is_read_is_not_cached(
    path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(place: Path, limit_bytes: int | None, _: OnProgress | None) -> Trace:
        kineto_trace = read_kineto(place, limit_bytes)
        program("other").write(place)
        return kineto_trace

    monkeypatch.setattr(cached, "read_kineto", read)
    assert "gemm" in read_trace(path).events.names
    assert not folder.exists()


def test_a_changed_file_of_the_same_size_and_time_is_read_again(path: Path, folder: Path) -> None:
    before = path.stat()
    assert "gemm" in read_trace(path).events.names
    path.write_bytes(path.read_bytes().replace(b"gemm", b"gemv"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert "gemv" in read_trace(path).events.names
    assert len(entries(folder)) == 2


def test_a_hash_of_parts_tells_files_apart_whose_times_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytearray(os.urandom(3 << 20))
    path = tmp_path / "a"
    path.write_bytes(content)
    status = path.stat()
    monkeypatch.setattr(os, "fstat", lambda _: status)
    states = {cache._read_state(path)}
    middle = (len(content) - cache._PART_BYTES) * 7 // (cache._N_PARTS - 1)
    for at in (0, middle, len(content) - 1):
        content[at] ^= 1
        path.write_bytes(content)
        states.add(cache._read_state(path))
    assert len(states) == 4


def test_nothing_outlives_a_change_of_profkits_sources(
    path: Path, folder: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    read_trace(path)
    monkeypatch.setattr(cache, "hash_code", lambda: b"another")
    read_trace(path)
    assert len(reads) == len(entries(folder)) == 2

    source = tmp_path / "code" / "inner" / "module.py"
    source.parent.mkdir(parents=True)
    source.write_text("a = 1")
    (tmp_path / "code" / "__pycache__").mkdir()
    (tmp_path / "code" / "__pycache__" / "module.pyc").touch()
    before = list(cache._scan_states(str(tmp_path / "code")))
    assert [state[0] for state in before] == [str(source)]

    source.write_text("a = 12")
    assert list(cache._scan_states(str(tmp_path / "code"))) != before
    monkeypatch.undo()
    assert cache.hash_code()


def test_the_limit_of_a_files_size_holds_from_the_cache_too(path: Path, folder: Path) -> None:
    assert read_trace(path, 1 << 30).notes.uncompressed_bytes == path.stat().st_size
    assert entries(folder)
    with pytest.raises(TooLargeError):
        read_trace(path, path.stat().st_size - 1)


def test_the_members_of_an_archive_are_cached_apart(
    tmp_path: Path, folder: Path, reads: list[Path]
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    for kernel in ("one", "two"):
        program(kernel).write(inside / f"{kernel}.pt.trace.json")
    archive = Path(shutil.make_archive(str(tmp_path / "job"), "tar", inside))
    members = [Path(f"{archive}!./{kernel}.pt.trace.json") for kernel in ("one", "two")] * 2
    names_of_members = [read_trace(member).events.names for member in members]
    assert ["one" in names for names in names_of_members] == [True, False] * 2
    assert len(reads) == len(entries(folder)) == 2


def truncated(entry: Path) -> None:
    entry.write_bytes(entry.read_bytes()[:-1])


def emptied(entry: Path) -> None:
    entry.write_bytes(b"")


def lengthened(entry: Path) -> None:
    entry.write_bytes(entry.read_bytes() + b"\0")


def replaced(entry: Path) -> None:
    entry.write_bytes(b"profkit\n" + b"\xff" * 1000)


def flipped(at: float) -> Callable[[Path], None]:
    def damage(entry: Path) -> None:
        content = bytearray(entry.read_bytes())
        content[int(len(content) * at)] ^= 0x10
        entry.write_bytes(content)

    return damage


@pytest.mark.parametrize(
    "damage",
    [truncated, emptied, lengthened, replaced, *map(flipped, (0, 0.002, 0.006, 0.02, 0.2, 0.5))],
)
def test_a_damaged_entry_is_replaced(
    damage: Callable[[Path], None], path: Path, folder: Path, reads: list[Path]
) -> None:
    first = read_trace(path)
    (entry,) = entries(folder)
    content = entry.read_bytes()
    damage(entry)
    assert same(read_trace(path), first)
    assert len(reads) == 2
    assert [entry.read_bytes() for entry in entries(folder)] == [content]


def test_no_flipped_bit_is_used(path: Path, folder: Path) -> None:
    """Whatever byte of an entry is another one, it is found, or it fills a gap."""
    users = Cache()
    key = users.key([path])
    assert key is not None
    users.store(key, lambda: encode_trace(read_kineto(path)), Stages())
    (entry,) = entries(folder)
    expected = users.find(key)
    assert expected is not None
    content = entry.read_bytes()

    for at in range(0, len(content), 61):
        entry.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        cached = users.find(key)
        if cached is None:
            assert not entry.exists()
            continue
        assert cached.data == expected.data
        for name, array in expected.arrays.items():
            assert np.array_equal(cached.arrays[name], array)


def out_of_range(name: str, value: int, at: int = -1) -> Callable[[dict[str, Any]], None]:
    def change(arrays: dict[str, Any]) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][at] = value

    return change


def missing(name: str) -> Callable[[dict[str, Any]], None]:
    def change(arrays: dict[str, Any]) -> None:
        del arrays[name]

    return change


def shortened(name: str) -> Callable[[dict[str, Any]], None]:
    def change(arrays: dict[str, Any]) -> None:
        arrays[name] = arrays[name][:-1]

    return change


def retyped(name: str, dtype: str) -> Callable[[dict[str, Any]], None]:
    def change(arrays: dict[str, Any]) -> None:
        arrays[name] = arrays[name].astype(dtype)

    return change


@pytest.mark.parametrize(
    "change",
    [
        out_of_range("name", 10_000), out_of_range("name", -1), out_of_range("lane", 99),
        out_of_range("category", 16), out_of_range("ts_ns", -1), out_of_range("dur_ns", 1 << 62),
        out_of_range("ts_ns", (1 << 63) - 1), out_of_range("position", -1),
        out_of_range("memory.lane", 99), out_of_range("memory.ts_ns", 0),
        out_of_range("correlation.rows", 10_000), out_of_range("correlation.rows", 0),
        out_of_range("correlation.rows", -1, 0),
        missing("dur_ns"), missing("memory.address"), missing("stream.rows"),
        shortened("name"), shortened("memory.n_bytes"), shortened("stream"),
        retyped("ts_ns", "<f8"), retyped("name", "<i8"), retyped("stream", "<f8"),
        retyped("stream.rows", "<i8"),
    ],
)  # fmt: skip
def test_what_is_stored_but_is_not_a_trace_is_not_used(
    change: Callable[[dict[str, Any]], None], path: Path, folder: Path, reads: list[Path]
) -> None:
    expected = read_kineto(path)
    stored = encode_trace(expected)
    arrays = dict(stored.arrays)
    change(arrays)
    users = Cache()
    key = users.key([path], b"trace")
    assert key is not None
    users.store(key, lambda: Entry(stored.data, arrays), Stages())
    assert len(entries(folder)) == 1
    assert same(read_trace(path), expected)
    assert len(reads) == 1
    assert same(read_trace(path), expected)
    assert len(reads) == 1, "the entry was replaced"


def test_plain_data_of_another_layout_is_not_used(path: Path, folder: Path) -> None:
    stored = encode_trace(read_kineto(path))
    for data in (b"", b"\xc0", stored.data[:-1], b"\x91" * 100_000):
        with pytest.raises(NotValidError):
            decode_trace(Entry(data, stored.arrays), "a")
    assert not folder.exists()


def test_what_cannot_be_encoded_is_not_cached(
    tmp_path: Path, folder: Path, reads: list[Path]
) -> None:
    path = tmp_path / "a.pt.trace.json"
    path.write_bytes(program().to_bytes().replace(b"gemm", b"\\ud800"))
    first, second = read_trace(path), read_trace(path)
    assert same(first, second)
    assert len(reads) == 2 - len(entries(folder))


def filled(folder: Path, tmp_path: Path, max_bytes: int, n: int) -> list[Key]:
    """Store so many entries of 100 kB, each an hour after the one before."""
    users, keys = Cache(max_bytes), []
    for number in range(n):
        path = tmp_path / f"file{number}"
        path.write_bytes(b"{" + os.urandom(100))
        key = users.key([path])
        assert key is not None
        keys.append(key)
        users.store(key, lambda: Entry(b"", {"a": np.zeros(100_000, np.uint8)}), Stages())
        stored = folder / f"{key.text}.entry"
        if stored.exists():
            os.utime(stored, (time_s := 1e9 + 3600 * number, time_s))
    return keys


def test_the_least_recently_used_entries_go(folder: Path, tmp_path: Path) -> None:
    keys = filled(folder, tmp_path, 320_000, 3)
    users = Cache(320_000)
    assert users.find(keys[0]) is not None, "and is used now"
    more = filled(folder, tmp_path / "..", 320_000, 1)
    assert [users.find(key) is not None for key in (*keys, *more)] == [True, False, True, True]
    assert sum(entry.stat().st_size for entry in entries(folder)) <= 320_000


def test_an_entry_that_may_be_mapped_is_not_removed_for_another(
    folder: Path, tmp_path: Path
) -> None:
    keys = filled(folder, tmp_path, 250_000, 2)
    users = Cache(250_000)
    assert all(users.find(key) for key in keys)
    more = filled(folder, tmp_path / "..", 250_000, 1)
    assert [users.find(key) is not None for key in (*keys, *more)] == [True, True, False]


def test_the_cache_takes_a_share_of_the_disk_at_most(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=900_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    filled(folder, tmp_path, 1 << 30, 3)
    assert not entries(folder)


def test_the_draft_of_a_dead_process_is_removed_and_a_running_one_keeps_its_draft(
    path: Path, folder: Path, reads: list[Path]
) -> None:
    users = Cache()
    key = users.key([path], b"trace")
    assert key is not None
    draft = folder / f"{key.text}.draft"
    folder.mkdir(parents=True)
    draft.write_bytes(b"another process writes this")
    read_trace(path)
    assert entries(folder) == [draft]
    os.utime(draft, (1e9, 1e9))
    read_trace(path)
    assert [entry.suffix for entry in entries(folder)] == [".entry"]
    read_trace(path)
    assert len(reads) == 2


def test_a_map_outlives_the_entry(path: Path, folder: Path) -> None:
    expected = read_trace(path)
    trace = read_trace(path)
    shutil.rmtree(folder)
    assert same(trace, expected)


def test_the_cache_is_not_used_where_its_folder_is_not_a_folder(
    path: Path, folder: Path, reads: list[Path]
) -> None:
    folder.parent.mkdir()
    folder.write_bytes(b"a file")
    expected = read_kineto(path)
    for _ in range(2):
        trace = read_trace(path)
        assert same(trace, expected)
        (said,) = (stage for stage in trace.notes.stages_ns if stage.startswith("cache"))
        assert said.startswith("cache: not written, ")
    assert len(reads) == 2


def test_nothing_is_written_through_a_link_in_place_of_the_folder(
    path: Path, folder: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "old.txt").write_text("not a recording")
    os.utime(elsewhere / "old.txt", (0, 0))
    folder.parent.mkdir()
    folder.symlink_to(elsewhere)

    trace = read_trace(path)
    assert "cache: not written, it is a link" in trace.notes.stages_ns
    assert [file.name for file in elsewhere.iterdir()] == ["old.txt"]


def test_an_interrupted_write_leaves_nothing(
    path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "_write_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        read_trace(path)
    assert not entries(folder)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")
def test_an_entry_of_another_user_is_not_used(
    path: Path, folder: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_trace(path)
    assert entries(folder)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    read_trace(path)
    assert len(reads) == 2


def test_the_entries_are_for_the_user_alone(path: Path, folder: Path) -> None:
    read_trace(path)
    (entry,) = entries(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert entry.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("setting", ["0", "off"])
def test_the_environment_turns_it_off_with_a_zero(
    setting: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_cache(tmp_path / "unused", monkeypatch)
    monkeypatch.setenv("PROFKIT_CACHE", setting)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    read_trace(path)
    is_on = (tmp_path / "home" / "profkit" / "recordings").exists()
    assert is_on == (setting != "0"), "a path that is not absolute is ignored"
    assert not (tmp_path / "unused").exists()


def test_a_user_without_a_home_has_no_cache(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(cache, "MIN_TEXT_BYTES", 0)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", unknown)
    assert same(read_trace(path), read_kineto(path))
