"""Damaged, hostile and compressed files give a trace or one clear error."""

import gzip
import io
import json
import os
import random
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profkit.api import analyze
from profkit.errors import (
    DamagedFileError,
    LoadError,
    MissingFileError,
    NotATraceError,
    SeveralTracesError,
    TooLargeError,
    UnreadableFileError,
)
from profkit.model.trace import Trace
from profkit.readers import stream
from profkit.readers.kineto import split
from profkit.testing import TraceBuilder
from tests.traces import load_trace as load
from tests.traces import op_event


@pytest.fixture
def read(tmp_path: Path) -> Callable[[bytes], Trace]:
    def _read(data: bytes) -> Trace:
        path = tmp_path / "t.json"
        path.write_bytes(data)
        return load(path)

    return _read


Read = Callable[[bytes], Trace]


def real_trace() -> bytes:
    builder = TraceBuilder(stacks=True, memory=True)
    for number in range(12):
        with builder.step(), builder.frame("train.py", number, "f"):
            builder.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=5_000)
            builder.alloc(64)
            builder.item()
    return builder.to_bytes()


REAL = real_trace()
N_REAL = REAL.count(b'"ph":"X"')


# ------------------------------------------------------------------------------------ truncated


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_truncated_file_is_read_up_to_its_end(pack: Callable[[bytes], bytes], read: Read) -> None:
    whole, data = read(pack(REAL)), pack(REAL)
    n_before = 0
    for at in range(len(data) // 2, len(data), max(1, len(data) // 40)):
        other_place = read(data[:at])
        assert other_place.notes.truncated
        n_before, n_earlier = other_place.notes.n_complete, n_before
        assert n_earlier <= n_before <= whole.notes.n_complete
        rows = range(len(other_place.events))
        assert [other_place.events.name_of(i) for i in rows] == [
            whole.events.name_of(i) for i in rows
        ]
    assert n_before > whole.notes.n_complete / 2


def test_events_after_a_broken_one_are_read(read: Read) -> None:
    good = [json.dumps(op_event(float(i))) for i in range(6)]
    good[2] = '{"ph": "X", "name": "bro"ken", "ts": 1}'
    trace = read(("[" + ",\n".join(good) + "]").encode())
    assert trace.notes.n_complete == 5
    assert trace.notes.n_skipped == 1
    assert not trace.notes.truncated


# --------------------------------------------------------------------------------- invalid text


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"C:\Users\me\torch\nn\x.py(3): f", r"C:\Users\me\torch\nn\x.py(3): f"),
        (r"torch\nn\functional.py(3): linear", r"torch\nn\functional.py(3): linear"),
        (r"torch\\nn\\functional.py(3): linear", r"torch\nn\functional.py(3): linear"),
        (r"a\/b.py(3): f", "a/b.py(3): f"),
        (r"\ud800 half", "\\ud800 half"),
        ("tab\tand\x01control", "tab\tand\x01control"),
        (r"quoted \" name", 'quoted " name'),
    ],
)
def test_unescaped_backslashes_and_control_characters_in_names_are_restored(
    written: str, meant: str, read: Read
) -> None:
    text = json.dumps([op_event(name="NAME"), op_event(2.0)]).replace("NAME", written)
    trace = read(text.encode("utf-8", "surrogatepass"))
    assert trace.events.name_of(0) == meant
    assert trace.notes.n_complete == 2
    trace.events.name_of(0).encode()


def test_bytes_that_are_not_utf8_are_replaced(read: Read) -> None:
    text = json.dumps([op_event(name="NAME"), op_event(2.0)]).encode().replace(b"NAME", b"caf\xe9")
    assert read(text).events.name_of(0) == "caf\ufffd"


def test_events_with_nan_or_infinite_times_are_excluded(read: Read) -> None:
    text = json.dumps([op_event(float("nan")), op_event(2.0, dur=float("inf")), op_event(3.0)])
    trace = read(text.encode())
    assert (len(trace.events), trace.notes.n_invalid) == (1, 2)


def test_ids_beyond_64_bits_are_read(read: Read) -> None:
    trace = read(json.dumps([op_event(args={"External id": 2**70 + 5})]).encode())
    assert trace.events.external_id.values.tolist() == [5]


def test_the_last_of_duplicate_keys_is_used(read: Read) -> None:
    text = json.dumps([op_event()]).replace('"name": "op"', '"name": "first", "name": "last"')
    assert read(text.encode()).events.name_of(0) == "last"


def test_62_000_process_names_are_read(read: Read) -> None:
    names = [
        {"ph": "M", "name": "process_name", "pid": i, "tid": 0, "args": {"name": f"p{i}"}}
        for i in range(62_000)
    ]
    trace = read(json.dumps([*names, op_event(pid=61_999)]).encode())
    assert trace.events.lanes[trace.events.lane[0]].process == "p61999"


# -------------------------------------------------------------------------------------- hostile


def test_an_event_nested_too_deeply_is_skipped(read: Read) -> None:
    deep = '{"ph": "X", "ts": 1, "args": {"x": ' + "[" * 100_000 + "]" * 100_000 + "}}"
    trace = read(
        ("[" + ", ".join([json.dumps(op_event()), deep, json.dumps(op_event(2.0))]) + "]").encode()
    )
    assert trace.notes.n_complete >= 2


def test_a_very_long_string_is_searched_once(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    searched = 0
    search = split._find_last_boundary

    def counting(pending: bytearray, start: int) -> object:
        nonlocal searched
        searched += len(pending) - start
        return search(pending, start)

    monkeypatch.setattr(split, "_find_last_boundary", counting)
    text = json.dumps([op_event(name="x" * 20_000_000), op_event(2.0)]).encode()
    trace = read(text)
    assert len(trace.events.name_of(0)) == 8192
    assert searched < 2 * len(text)


def test_text_without_an_event_boundary_is_not_accumulated_in_memory(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split, "MAX_EVENT_BYTES", 5 << 20)
    with pytest.raises(TooLargeError, match=r"5\.00 MiB"):
        read(b'[{"ph": "X", "name": "' + b"x" * (20 << 20))


def test_a_file_that_decompresses_to_more_than_the_limit_is_refused(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (64 << 20)))
    with pytest.raises(TooLargeError, match=r"more than 8\.00 MiB") as refused:
        load(bomb, limit_bytes=8 << 20)
    assert "--max-bytes" in refused.value.hint


def test_pipes_devices_and_broken_links_are_refused_at_once(tmp_path: Path) -> None:
    pipe, loop, dangling = tmp_path / "pipe", tmp_path / "loop", tmp_path / "dangling"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    dangling.symlink_to(tmp_path / "gone")
    for path in (pipe, loop, dangling, Path("/dev/zero")):
        with pytest.raises(UnreadableFileError) as refused:
            load(path)
        assert path.name in refused.value.message


def test_a_path_below_a_file_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(LoadError):
        load(tmp_path / "file" / "t.json")
    with pytest.raises(MissingFileError):
        load(tmp_path / "no" / "t.json")


# ----------------------------------------------------------------------------------- compressed


def _zip(data: bytes, *names: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, data)
    return packed.getvalue()


def _tar(data: bytes, *names: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def _zstd(data: bytes) -> bytes:
    return bytes(pytest.importorskip("zstandard").compress(data))


def _members(data: bytes) -> bytes:
    return gzip.compress(data[:5000]) + gzip.compress(data[5000:]) + b"\0" * 1000


PACKS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "gzip of several members and padding": _members,
    "zstd": _zstd,
    "zip": lambda d: _zip(d, "t.json"),
    "zip of a gzip": lambda d: _zip(gzip.compress(d), "a/t.json.gz"),
    "tar": lambda d: _tar(d, "t.json", "notes.txt"),
    "gzipped tar of a gzip": lambda d: gzip.compress(_tar(gzip.compress(d), "r/t.json.gz")),
}


@pytest.mark.parametrize("pack", PACKS.values(), ids=PACKS)
def test_compression_does_not_change_a_trace(pack: Callable[[bytes], bytes], read: Read) -> None:
    plain, packed = read(REAL), read(pack(REAL))
    assert packed.events.ts_ns.tolist() == plain.events.ts_ns.tolist()
    assert packed.notes.uncompressed_bytes == len(REAL)
    assert not packed.notes.truncated


def _gzipped_tar(data: bytes, *names: str) -> bytes:
    return gzip.compress(_tar(data, *names))


ARCHIVES = pytest.mark.parametrize(
    "pack", [_zip, _tar, _gzipped_tar], ids=["zip", "tar", "gzipped tar"]
)


@ARCHIVES
def test_an_archive_of_several_traces_lists_them_and_each_can_be_read(
    pack: Callable[..., bytes], tmp_path: Path
) -> None:
    path = tmp_path / "ranks.archive"
    path.write_bytes(pack(REAL, "r/b.json", "a.json", "c.txt"))
    with pytest.raises(SeveralTracesError, match=r"2 traces.*ranks\.archive!a\.json") as several:
        load(path)
    assert several.value.members == (f"{path}!a.json", f"{path}!r/b.json")
    assert {len(load(member).events) for member in several.value.members} == {N_REAL}
    with pytest.raises(MissingFileError, match=r"no d\.json in .*ranks\.archive\."):
        load(f"{path}!d.json")


@ARCHIVES
def test_an_archive_without_a_trace_says_so(pack: Callable[..., bytes], read: Read) -> None:
    with pytest.raises(NotATraceError, match="without a trace"):
        read(pack(REAL, "c.txt"))


def test_a_file_with_an_exclamation_mark_in_its_name_is_not_an_archive(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(REAL)
    (tmp_path / "a!b.json").write_bytes(REAL)
    assert len(load(tmp_path / "a!b.json").events) == N_REAL
    with pytest.raises(MissingFileError, match=r"no c\.json in"):
        load(tmp_path / "a!c.json")


def test_a_file_compressed_too_many_times_is_refused(read: Read) -> None:
    data = REAL
    for _ in range(5):
        data = gzip.compress(data)
    with pytest.raises(DamagedFileError, match="compressed more than"):
        read(data)


# ----------------------------------------------------------------------------------- properties


def load_or_none(data: bytes, path: Path) -> Trace | None:
    path.write_bytes(data)
    try:
        return load(path, limit_bytes=64 << 20)
    except LoadError:
        return None


quick = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@quick
@given(data=st.binary(max_size=400))
def test_any_bytes_give_a_trace_or_a_load_error(data: bytes, tmp_path: Path) -> None:
    for start in (b"", b'{"traceEvents": [', b"\x1f\x8b\x08"):
        trace = load_or_none(start + data, tmp_path / "t.json")
        assert trace is None or len(trace.events) <= trace.notes.n_events


@st.composite
def draw_mutant(draw: st.DrawFn) -> bytes:
    data = bytearray(REAL)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data) - 1))
        kind = draw(st.sampled_from(["cut", "flip", "splice", "insert"]))
        if kind == "cut":
            del data[at : at + draw(st.integers(1, 200))]
        elif kind == "flip":
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "splice":
            other_kernel = draw(st.integers(0, len(data) - 1))
            data[at:at] = data[other_kernel : other_kernel + 300]
        else:
            data[at:at] = draw(
                st.sampled_from([b'"', b"\\", b"{", b"}]", b"\0", b"\xff", b'"ts":'])
            )

    return bytes(data)


@quick
@given(data=draw_mutant())
def test_any_mutation_of_a_trace_gives_a_trace_or_a_load_error(data: bytes, tmp_path: Path) -> None:
    trace = load_or_none(data, tmp_path / "t.json")
    if trace is not None:
        assert len(trace.events) <= trace.notes.n_events
        assert (trace.events.dur_ns >= 0).all()


@quick
@given(seed=st.integers(0, 10**6), chunk=st.sampled_from([64, 1000, 1 << 20]))
def test_the_order_of_events_in_the_file_does_not_matter(
    seed: int, chunk: int, tmp_path: Path
) -> None:
    document = json.loads(REAL)
    random.Random(seed).shuffle(document["traceEvents"])  # noqa: S311  (no secret)
    before, stream.CHUNK_BYTES = stream.CHUNK_BYTES, chunk  # type: ignore[misc]
    try:
        shuffled = load_or_none(json.dumps(document).encode(), tmp_path / "t.json")
    finally:
        stream.CHUNK_BYTES = before  # type: ignore[misc]
    original = load_or_none(REAL, tmp_path / "t.json")
    assert shuffled is not None
    assert original is not None
    assert shuffled.base_ns == original.base_ns

    def as_set(trace: Trace) -> list[tuple[str, int, int]]:
        table = trace.events
        return sorted(
            (table.name_of(i), int(table.ts_ns[i]), int(table.dur_ns[i])) for i in range(len(table))
        )

    assert as_set(shuffled) == as_set(original)


KERNEL = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1, "dur": 5}


def _trace(*events: dict[str, object]) -> str:
    return json.dumps({"schemaVersion": 1, "traceEvents": events})


@pytest.mark.parametrize(
    "text",
    [
        _trace(KERNEL) + _trace(KERNEL, KERNEL),
        _trace(KERNEL) + "\n" + _trace(KERNEL, KERNEL),
        json.dumps([KERNEL]) + json.dumps([KERNEL, KERNEL]),
        _trace(KERNEL)[:-1] + ', "traceEvents": ' + json.dumps([KERNEL, KERNEL]) + "}",
    ],
    ids=["traces", "lines", "arrays", "keys"],
)
def test_a_second_list_of_events_is_not_read_and_reported(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    trace = load(path)
    assert len(trace.events) == 1
    assert trace.notes.n_unread_bytes > 2 * len(json.dumps(KERNEL))
    (finding,) = analyze(path, select=["odd-trace"], strict=True).health
    assert finding.severity == "warning"
    assert "with a second list of events or another trace" in finding.message


@pytest.mark.parametrize("after", ["", "\n", '  , "traceName": "t.json"'])
def test_what_belongs_to_the_trace_is_not_left_unread(tmp_path: Path, after: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(_trace(KERNEL)[:-1] + after + "}\n")
    assert load(path).notes.n_unread_bytes == 0


def test_the_events_come_from_the_files_own_key(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    inner = '{"meta": {"traceEvents": [' + json.dumps({**KERNEL, "name": "other"}) + "]}, "
    path.write_text(inner + _trace(KERNEL)[1:])
    assert load(path).events.names == ("gemm",)


@pytest.mark.parametrize("device", [-1, 1 << 31, 1 << 40])
def test_a_device_that_cannot_be_is_unknown(tmp_path: Path, device: int) -> None:
    path = tmp_path / "t.json"
    other_kernel = {**KERNEL, "ts": 9, "args": {"device": device, "stream": 7}}
    path.write_text(_trace({**KERNEL, "args": {"device": 0, "stream": 7}}, other_kernel))
    assert load(path).events.device.values.tolist() == [0]
    (summary,) = analyze(path, strict=True).summary.devices
    assert (summary.device, summary.busy_ns) == ("cuda:0", 10_000)


def test_an_event_without_a_duration_is_not_one_of_zero_length(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(_trace(KERNEL, {k: v for k, v in KERNEL.items() if k != "dur"}))
    trace = load(path)
    assert (len(trace.events), trace.notes.n_invalid) == (1, 1)


def test_broken_events_are_passed_without_counting_all_lines_before_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[int] = []

    class Recording(json.JSONDecoder):
        def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
            places.append(idx)
            return super().raw_decode(s, idx)

    monkeypatch.setattr(split, "_DECODER", Recording(strict=False))
    broken = '{"ph":"X"},{"name":'
    text = f'{{"traceEvents":[{broken * 20_000}"x"}},{json.dumps(op_event())}]}}'
    path = tmp_path / "t.json"
    path.write_text(text)
    trace = load(path)
    assert (len(trace.events), trace.events.position[0]) == (1, trace.notes.n_events - 1)
    assert len(places) > 20_000
    assert max(places) < len(text) / 4
