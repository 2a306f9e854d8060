"""A worker process reads an uncompressed pickle while the command still starts."""

import os
import pickle
import signal
import subprocess
from pathlib import Path
from typing import IO, Any

import pytest

from profkit.errors import RefusedPickleError, TooLargeError
from profkit.model.snapshot import MemorySnapshot
from profkit.readers.snapshot import read, worker_process
from profkit.readers.snapshot.read import read_pickle
from profkit.testing import SnapshotBuilder


def read_snapshot(path: Path, **options: Any) -> MemorySnapshot:  # noqa: ANN401
    value = read_pickle(path, **options)
    assert isinstance(value, MemorySnapshot)
    return value


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    path = tmp_path / "rank0.pickle"
    path.write_bytes(SnapshotBuilder().to_bytes())
    return path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the worker processes in order of their start."""
    real, all_of_them = worker_process.start, []

    def start(*args: IO[bytes]) -> "subprocess.Popen[bytes]":
        all_of_them.append(real(*args))
        return all_of_them[-1]

    monkeypatch.setattr(worker_process, "start", start)
    return all_of_them


def test_a_file_is_read_by_the_worker_that_was_started_early(
    snapshot: Path, started: list[Any]
) -> None:
    alone = read_snapshot(snapshot)
    worker_process.start_early(os.path.relpath(snapshot))
    early = read_snapshot(snapshot)
    assert len(started) == 2
    assert early.notes.uncompressed_bytes == alone.notes.uncompressed_bytes
    assert early.segments.address.tolist() == alone.segments.address.tolist()
    assert early.history.time_us.tolist() == alone.history.time_us.tolist()
    assert all(process.returncode is not None for process in started)


@pytest.mark.parametrize("is_early", [False, True])
def test_progress_is_reported_while_a_snapshot_is_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_early: bool,  # noqa: FBT001
) -> None:
    path = tmp_path / "large.pickle"
    # Small strings, each of which takes the unpickler a while.
    padding = [str(n) for n in range(600_000)]
    path.write_bytes(pickle.dumps({"segments": [], "padding": padding}, protocol=4))
    monkeypatch.setattr(read, "_REPORT_EVERY_S", 0.001)
    reports: list[tuple[int, int]] = []
    if is_early:
        worker_process.start_early(str(path))
    n_open = _n_open()
    read_snapshot(path, on_progress=lambda n_bytes, of_bytes: reports.append((n_bytes, of_bytes)))

    size = path.stat().st_size
    assert {of_bytes for _, of_bytes in reports} == {size}

    positions = [n_bytes for n_bytes, _ in reports]
    assert positions == sorted(positions)
    assert 0 < positions[-1] <= size
    assert _n_open() <= n_open


def _n_open() -> int:
    """Return the number of open files of this process; 0 without procfs."""
    listed = Path("/proc/self/fd")
    return len(list(listed.iterdir())) if listed.exists() else 0


def test_an_interrupt_kills_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[Any]
) -> None:
    path = tmp_path / "large.pickle"
    padding = [str(n) for n in range(600_000)]
    path.write_bytes(pickle.dumps({"segments": [], "padding": padding}, protocol=4))
    monkeypatch.setattr(read, "_REPORT_EVERY_S", 0.001)

    def stop(_n_bytes: int, _of_bytes: int) -> None:
        raise KeyboardInterrupt

    worker_process.start_early(str(path))
    with pytest.raises(KeyboardInterrupt):
        read_snapshot(path, on_progress=stop)
    assert started[0].returncode == -signal.SIGKILL


def test_a_file_that_changed_after_the_early_start_is_read_again(
    snapshot: Path, started: list[Any]
) -> None:
    worker_process.start_early(str(snapshot))
    snapshot.write_bytes(pickle.dumps({"segments": [], "device_traces": [], "padding": "x" * 999}))
    assert len(read_snapshot(snapshot).segments) == 0
    assert len(started) == 2
    assert started[0].returncode is not None


def test_the_size_limit_applies_to_early_workers(snapshot: Path, started: list[Any]) -> None:
    worker_process.start_early(str(snapshot))
    with pytest.raises(TooLargeError):
        read_snapshot(snapshot, limit_bytes=10)
    assert started[0].returncode is not None


def test_an_early_worker_refuses_a_pickle_that_names_code(tmp_path: Path) -> None:
    path = tmp_path / "evil.pickle"
    path.write_bytes(pickle.dumps(os.system, protocol=4))
    worker_process.start_early(str(path))
    with pytest.raises(RefusedPickleError, match="system"):
        read_snapshot(path)


@pytest.mark.parametrize("kind", ["nothing", "folder", "pipe", "trace", "invalid"])
def test_no_worker_is_started_for_other_files(
    kind: str, tmp_path: Path, started: list[Any]
) -> None:
    path = tmp_path / "given"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "trace":
        path.write_text('{"traceEvents": []}')
    worker_process.start_early(str(path) + ("\0" if kind == "invalid" else ""))
    assert not started


def test_a_worker_whose_result_is_not_used_is_stopped(snapshot: Path, started: list[Any]) -> None:
    worker_process.start_early(str(snapshot))
    worker_process._stop_all()
    assert started[0].returncode is not None
    assert len(read_snapshot(snapshot).segments) == len(read_snapshot(snapshot).segments)
