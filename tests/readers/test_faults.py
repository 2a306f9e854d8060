"""Any call of the system that reading makes may fail: each failure is a LoadError, exit code 3."""

import contextlib
import errno
import gzip
import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profkit.api import analyze, render
from profkit.cli.main import main
from profkit.errors import DamagedFileError, LoadError, TooLargeError, UnreadableFileError
from profkit.testing import LiveBuilder, SnapshotBuilder, TraceBuilder

LOAD_ERROR = 3
CODES = (errno.EIO, errno.EACCES, errno.ESTALE)


class Faults:
    """Counts the calls that concern one file, and lets one of them fail.

    Attributes:
        n: Calls so far.
        at: The number of the call that fails; no call at 0.
    """

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        self.n = 0
        self.at = 0
        self.code = errno.EIO

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        self.n += 1
        if self.n == self.at:
            raise OSError(self.code, os.strerror(self.code), self.path)
        return function(*args, **kwargs)

    def wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, which may fail if its first argument is the file."""

        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            is_ours = args and isinstance(args[0], str | Path) and str(args[0]) == self.path
            result = self.call(function, *args, **kwargs) if is_ours else function(*args, **kwargs)
            return FaultyFile(result, self) if is_ours and hasattr(result, "read") else result

        return call


class FaultyFile:
    """An open file whose calls may fail."""

    def __init__(self, raw: Any, faults: Faults) -> None:  # noqa: ANN401
        self._raw = raw
        self._faults = faults

    def __enter__(self) -> Any:  # noqa: ANN401
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        attribute = getattr(self._raw, name)
        if name not in {"read", "readinto", "seek", "tell"}:
            return attribute
        return lambda *args: self._faults.call(attribute, *args)


def trace() -> bytes:
    b = TraceBuilder()
    for _ in range(50):
        b.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=5_000)
    return b.to_bytes()


def zipped(data: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", method) as archive:
        archive.writestr("t.json", data)
    return raw.getvalue()


def tarred(data: bytes, n: int = 1) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for number in range(n):
            info = tarfile.TarInfo(f"{number}.json" if number < 2 else f"{number}.txt")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return raw.getvalue()


def zstandard(data: bytes) -> bytes:
    return bytes(pytest.importorskip("zstandard").compress(data))


def snapshot(_: bytes, path: Path) -> None:
    b = SnapshotBuilder()
    b.alloc(512)
    b.write(path)


FILES: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "zip": zipped,
    "tar": tarred,
    "tar.gz": lambda data: gzip.compress(tarred(data)),
    "zstd": zstandard,
}


RARER = ("plain", "zip", "zstd", "tar.gz", "snapshot")
KINDS = [
    pytest.param(kind, marks=[pytest.mark.slow] if kind in RARER else [])
    for kind in (*FILES, "snapshot", "memory", "report")
]


@pytest.fixture(params=KINDS)
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "recording"
    if request.param in FILES:
        path.write_bytes(FILES[request.param](trace()))
    elif request.param == "snapshot":
        snapshot(b"", path)
    elif request.param == "memory":
        LiveBuilder().write(path)
    else:
        (tmp_path / "t.json").write_bytes(trace())
        path.write_bytes(render(analyze(tmp_path / "t.json"), "json"))
    return path


def test_each_call_that_fails_is_a_load_error(
    recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = Faults(recording)
    monkeypatch.setattr(io, "open", faults.wrapped(io.open))
    monkeypatch.setattr(os, "stat", faults.wrapped(os.stat))

    def read() -> int:
        faults.n = 0
        return main(["diff", str(recording), str(recording)])

    assert read() == 0
    n = faults.n
    assert n >= 4
    ends = []
    for faults.at in range(1, n + 1):
        capsys.readouterr()
        faults.code = code = CODES[faults.at % len(CODES)]
        ends.append(read())
        said = capsys.readouterr().err
        if ends[-1]:
            assert ends[-1] == LOAD_ERROR, (faults.at, said)
            assert os.strerror(code) in said
            assert str(recording) in said
    assert LOAD_ERROR in ends


@pytest.mark.parametrize(
    "name", ["x" * 300, "x" * 300 + "/t.json", "t.json!" + "y" * 5000, "a\0b", "x/" * 3000]
)
def test_paths_that_the_system_refuses_are_load_errors(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(LoadError):
        analyze(tmp_path / name)
    for command in (["analyze"], ["export", "--to", "json", "-o", "-"], ["what-if", "--graph"]):
        assert main([command[0], str(tmp_path / name), *command[1:]]) == LOAD_ERROR
        assert "profkit: " in capsys.readouterr().err


def test_a_zip_that_needs_a_password_says_so(tmp_path: Path) -> None:
    data = bytearray(zipped(trace()))
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path = tmp_path / "t.zip"
    path.write_bytes(data)
    with pytest.raises(UnreadableFileError, match="is encrypted"):
        analyze(path)


@pytest.mark.parametrize("method", [9, 14, 20, 93, 98])
def test_a_zip_whose_method_python_lacks_says_so(method: int, tmp_path: Path) -> None:
    data = bytearray(zipped(trace()))
    data[8] = method
    data[data.index(b"PK\x01\x02") + 10] = method
    path = tmp_path / "t.zip"
    path.write_bytes(data)
    with pytest.raises((UnreadableFileError, DamagedFileError), match=r"t\.zip .*compress"):
        analyze(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_DEFLATED])
def test_a_damaged_member_of_a_zip_is_a_load_error_or_truncated(
    method: int, tmp_path: Path
) -> None:
    data = zipped(trace() * 20, method)
    path = tmp_path / "t.zip"
    for at in range(30, len(data), len(data) // 60):
        path.write_bytes(data[:at] + b"\xff\x00\xaa" + data[at + 3 :])
        with contextlib.suppress(LoadError):
            assert analyze(path).source.n_events


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["tar", "tar.gz"])
def test_a_tar_of_very_many_members_is_not_listed(
    pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "t.tar"
    path.write_bytes(pack(tarred(trace()[:100], 10_001)))
    with pytest.raises(TooLargeError, match=r"an archive with more than 10,000 members"):
        analyze(path)
    data = io.BytesIO(tarred(trace()))
    path.write_bytes(pack(data.getvalue()))
    assert analyze(f"{path}!0.json").source.n_events


def test_the_directory_of_a_zip_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "t.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(150):
            archive.writestr(zipfile.ZipInfo(f"{number}-" + "x" * 65_000), b"")
    with pytest.raises(TooLargeError, match="archive with a directory of more than"):
        analyze(path)


def test_a_name_of_a_gigabyte_in_a_tar_is_not_read(tmp_path: Path) -> None:
    header = tarfile.TarInfo("long")
    header.type = tarfile.GNUTYPE_LONGNAME
    header.size = 1 << 30
    path = tmp_path / "t.tar"
    path.write_bytes(header.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20))
    with pytest.raises(DamagedFileError, match="cannot be decompressed"):
        analyze(path)
