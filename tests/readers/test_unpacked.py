"""The members of an archive are copied in one pass, and are then read from their copies."""

import io
import shutil
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from profkit.analysis import several
from profkit.cli.main import main
from profkit.errors import DamagedFileError, LoadError, MissingFileError
from profkit.readers import stream
from profkit.readers.stream import current_copies, read_whole
from profkit.readers.unpacked import unpacked
from profkit.testing import TraceBuilder

TEXTS = {
    "a.json": b'{"traceEvents": []}',
    "r/b.json": bytes(range(256)) * 4_000,
    "empty.json": b"",
}


def write_tar(path: Path, texts: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]  # any mode
        for name, text in texts.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return path


def write_plain_tar(path: Path, texts: dict[str, bytes]) -> Path:
    return write_tar(path, texts, "w")


def write_zip(path: Path, texts: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in texts.items():
            archive.writestr(name, text)
    return path


ARCHIVES = pytest.mark.parametrize("write", [write_tar, write_plain_tar, write_zip])


@ARCHIVES
def test_members_are_read_from_copies_that_are_deleted(
    write: Callable[[Path, dict[str, bytes]], Path], tmp_path: Path
) -> None:
    archive = write(tmp_path / "ranks.archive", TEXTS)
    with unpacked(str(archive)):
        copies = list(current_copies().values())
        # Readable without the archive: so nothing is read from it.
        archive.write_bytes(b"")
        assert {name: read_whole(Path(f"{archive}!{name}")) for name in TEXTS} == TEXTS

    assert len(copies) == len(TEXTS)
    assert not any(copy.parent.exists() for copy in copies)
    assert current_copies() == {}
    with pytest.raises(MissingFileError):
        read_whole(Path(f"{archive}!a.json"))


def test_the_member_in_which_a_damaged_archive_ends_is_read_from_the_archive(
    tmp_path: Path,
) -> None:
    archive = write_tar(tmp_path / "ranks.tar", TEXTS, "w")
    archive.write_bytes(archive.read_bytes()[:-600_000])
    with unpacked(str(archive)):
        assert list(current_copies()) == [f"{archive}!a.json"]
        damaged = read_whole(Path(f"{archive}!r/b.json"))

    assert damaged
    assert TEXTS["r/b.json"].startswith(damaged)


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b nothing", b'{"traceEvents": []}'])
def test_what_is_not_an_archive_is_not_copied(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "ranks.tar"
    file.write_bytes(content)
    with unpacked(str(file)), unpacked(str(tmp_path / "absent.tar")):
        assert current_copies() == {}
        with pytest.raises(LoadError) as error:
            read_whole(Path(f"{file}!a.json"))
    assert isinstance(error.value, MissingFileError | DamagedFileError)


def test_copies_leave_half_of_the_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = write_tar(tmp_path / "ranks.tar", TEXTS)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=2_000))
    with unpacked(str(archive)):
        assert list(current_copies()) == [f"{archive}!a.json"]
        assert read_whole(Path(f"{archive}!r/b.json")) == TEXTS["r/b.json"]


def test_without_a_folder_for_copies_the_archive_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = write_tar(tmp_path / "ranks.tar", TEXTS)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    with unpacked(str(archive)):
        assert current_copies() == {}
        assert read_whole(Path(f"{archive}!r/b.json")) == TEXTS["r/b.json"]


def write_job(folder: Path, n_ranks: int) -> Path:
    builder = TraceBuilder()
    with builder.step():
        builder.op("aten::mm")
    texts = {f"{rank}.json": builder.to_bytes() for rank in range(n_ranks)}
    return write_tar(folder / f"{n_ranks}.tar", texts)


@pytest.mark.parametrize("command", [["analyze"], ["export", "--to", "folded", "-o"]])
def test_an_archive_is_opened_as_often_for_many_members_as_for_few(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_opened: Counter[str] = Counter()
    open_stored = stream.open_stored

    def count_and_open(place: stream.Place) -> object:
        n_opened[Path(place).name] += 1
        return open_stored(place)

    monkeypatch.setattr(stream, "open_stored", count_and_open)
    few, many = write_job(tmp_path, 3), write_job(tmp_path, 9)
    for archive in (few, many):
        output = [str(tmp_path / f"{archive.stem}-out") + "/"] if "-o" in command else []
        assert main([*command, *output, str(archive)]) == 0
    assert n_opened["3.tar"] == n_opened["9.tar"]


def test_a_process_gets_the_copies_of_its_recording_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = write_job(tmp_path, 3)
    sent: list[list[str]] = []

    def keep(_function: str, items: list[Any], _n: int) -> Iterator[tuple[int, Any]]:
        sent.extend(sorted(item.copies) for item in items)
        yield from ((index, several.analyze_item(item)) for index, item in enumerate(items))

    monkeypatch.setattr(several, "call_in_processes", keep)
    assert main(["analyze", str(archive), "--workers", "2"]) == 0
    assert sorted(sent) == [[f"{archive}!{rank}.json"] for rank in range(3)]
