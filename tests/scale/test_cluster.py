"""Recordings are analyzed on a Dask cluster: a scheduler and workers that the tests start."""

# ruff: noqa: ANN401  (futures and their results are any objects)

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from profkit.api import analyze, render
from profkit.cli.main import main
from profkit.errors import (
    LostProcessError,
    MissingFileError,
    UsageError,
)
from profkit.scale import cluster
from tests.job_traces import write_ranks
from tests.scale.functions import HERE

distributed = pytest.importorskip("distributed")

ROOT = Path(__file__).parents[2]
LIMIT_S = 60


class Cluster:
    """A scheduler and its workers, each a process.

    Attributes:
        address: The scheduler's.
        workers: Processes without a nanny, which would start them again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "scheduler.json"

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{port}"
        self.workers: list[subprocess.Popen[bytes]] = []
        self.scheduler = self._start(
            "scheduler",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--no-dashboard",
            "--scheduler-file",
            str(self.file),
        )

    def add_worker(self) -> "subprocess.Popen[bytes]":
        worker = self._start(
            "worker",
            self.address,
            "--no-nanny",
            "--no-dashboard",
            "--nthreads",
            "1",
            "--host",
            "127.0.0.1",
            "--local-directory",
            str(self.folder),
        )
        self.workers.append(worker)
        return worker

    def _start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        paths = os.pathsep.join((str(ROOT), *filter(None, sys.path)))
        return subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_" + arguments[0], *arguments[1:]],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
            cwd=self.folder,
        )

    def end(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait(LIMIT_S)


@pytest.fixture(scope="module")
def dask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a cluster of two workers."""
    started = Cluster(tmp_path_factory.mktemp("dask"))
    try:
        for _ in range(2):
            started.add_worker()
        yield started
    finally:
        started.end()


@pytest.fixture
def client(dask: Cluster) -> Iterator[Any]:
    with distributed.Client(dask.address, timeout=LIMIT_S, set_as_default=False) as cluster_client:
        cluster_client.wait_for_workers(2, timeout=LIMIT_S)
        yield cluster_client


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_ranks(tmp_path / "job", 3)


@pytest.mark.slow
def test_the_report_is_the_same_as_without_a_cluster(
    dask: Cluster,
    client: Any,
    job: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (job / "rank9.pt.trace.json.gz").write_bytes(b"\x1f\x8b and nothing")
    monkeypatch.chdir(job.parent)
    packed = shutil.make_archive("packed", "tar", job, ".")
    for path in (str(job), "job", "./job", Path(packed).name):
        assert render(analyze(path, client=client), "json") == render(analyze(path), "json")
    code = main(["analyze", "job", "--format", "json"])
    output = capsys.readouterr()
    for option in (["--cluster", dask.address], ["--scheduler-file", str(dask.file)]):
        assert main(["analyze", "job", "--format", "json", *option]) == code == 3
        there = capsys.readouterr()
        assert there.out == output.out
        assert there.err.startswith("profkit: Dask dashboard: http")
        assert output.err in there.err


@pytest.mark.slow
def test_a_task_of_the_cluster_uses_it_too(client: Any, job: Path) -> None:
    summary = client.submit(analyze, str(job), pure=False).result(timeout=LIMIT_S)
    assert render(summary, "json") == render(analyze(job), "json")


@pytest.mark.slow
def test_errors_of_items_are_results(client: Any) -> None:
    results = dict(cluster.call_on_cluster(f"{HERE}:refused", [0, 2], [1, 1], client))
    assert results[0].hint == "Copy it."
    assert "ZeroDivisionError" in results[1].message
    (missing,) = cluster.call_on_cluster(f"{HERE}:missing", [0], [1], client)
    assert isinstance(missing[1], MissingFileError)
    assert "The worker tcp://127.0.0.1:" in missing[1].hint
    assert "at the same path or a URL" in missing[1].hint


@pytest.mark.slow
def test_a_file_that_kills_its_process_or_its_worker_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, always = f"{tmp_path}/once-1", f"{tmp_path}/always-9"
    own_cluster = Cluster(tmp_path)

    try:
        for _ in range(5):  # of which four die
            own_cluster.add_worker()
        with distributed.Client(
            own_cluster.address, timeout=LIMIT_S, set_as_default=False
        ) as client:
            client.wait_for_workers(5, timeout=LIMIT_S)
            results = dict(
                cluster.call_on_cluster(f"{HERE}:killed", ["", once, always], [1] * 3, client)
            )
            assert (results[0], results[1]) == ("alive", "alive at last")
            assert isinstance(results[2], LostProcessError)
            assert "SIGKILL" in results[2].message
            assert Path(always).read_text() == "xx"
            monkeypatch.setattr(cluster, "call_on_worker", _killed)
            ((_, lost),) = cluster.call_on_cluster("", [None], [1], client)
            assert isinstance(lost, LostProcessError)
            assert lost.message == "The workers that read it died."
    finally:
        own_cluster.end()


def _killed(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_tasks_of_a_worker_that_is_killed_midway_run_on_another(tmp_path: Path) -> None:
    own_cluster = Cluster(tmp_path)

    try:
        first = own_cluster.add_worker()
        with distributed.Client(
            own_cluster.address, timeout=LIMIT_S, set_as_default=False
        ) as client:
            client.wait_for_workers(1, timeout=LIMIT_S)
            results = cluster.call_on_cluster(f"{HERE}:slowly", range(8), [1] * 8, client)
            values = [next(results)]
            own_cluster.add_worker()
            client.wait_for_workers(2, timeout=LIMIT_S)
            first.kill()
            values += results
            assert sorted(values) == [(number, number) for number in range(8)]
    finally:
        own_cluster.end()


@pytest.mark.slow
def test_an_interrupt_cancels_what_has_not_begun(client: Any) -> None:
    results = cluster.call_on_cluster(f"{HERE}:slowly", range(200), [1] * 200, client)
    next(results)
    results.close()
    until = time.monotonic() + LIMIT_S
    while any(client.processing().values()) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(client.processing().values())


@pytest.mark.slow
def test_a_cluster_that_ends_is_an_error(tmp_path: Path) -> None:
    own_cluster = Cluster(tmp_path)
    try:
        own_cluster.add_worker()
        with distributed.Client(
            own_cluster.address, timeout=LIMIT_S, set_as_default=False
        ) as client:
            client.wait_for_workers(1, timeout=LIMIT_S)
            results = cluster.call_on_cluster(f"{HERE}:slowly", range(200), [1] * 200, client)
            next(results)
            client.shutdown()
            with pytest.raises(UsageError, match="ended, or cancelled"):
                list(results)
    finally:
        own_cluster.end()


def test_a_scheduler_that_is_not_there_is_a_usage_error(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster, "_TIMEOUT_S", 0.2)
    assert main(["analyze", str(job), "--cluster", "tcp://127.0.0.1:1"]) == 2
    assert "There is no Dask scheduler at tcp://127.0.0.1:1" in capsys.readouterr().err
    assert main(["analyze", str(job), "--cluster", "a", "--scheduler-file", "b"]) == 2
    assert "both name a cluster" in capsys.readouterr().err
    missing = str(job / "no.json")
    assert main(["analyze", str(job), "--scheduler-file", missing]) == 2
    assert f"There is no Dask scheduler at {missing}" in capsys.readouterr().err


def test_without_dask_the_extra_is_named(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main(["analyze", str(job), "--cluster", "tcp://127.0.0.1:1"]) == 2
    assert "pip install 'profkit[dask]'" in capsys.readouterr().err


class Futures:
    """A client whose tasks have these states and results already."""

    asynchronous = False
    status = "running"
    loop = None

    def __init__(self, *found: Any) -> None:
        self.found = found
        self.cancelled: list[Any] = []

    def map(self, function: Callable[..., Any], *columns: list[Any], **options: Any) -> list[Any]:
        assert function is cluster.call_on_worker
        assert options == {"pure": False, "retries": 1}
        assert [len(column) for column in columns] == [len(self.found)] * 3
        return [self._future(number, result) for number, result in enumerate(self.found)]

    @staticmethod
    def _future(number: int, result: Any) -> Any:
        def made() -> Any:
            if result is None:
                raise CancelledError
            if isinstance(result, Exception):
                raise result
            return result

        return SimpleNamespace(
            key=f"call-{number}",
            result=made,
            cancelled=lambda: result is None,
            release=lambda: None,
            done=lambda: number == 0,
        )

    def cancel(self, futures: list[Any], *, force: bool) -> None:
        assert force
        self.cancelled = [future.key for future in futures]


@pytest.fixture
def finished_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Futures are finished in the order in which they were made."""
    monkeypatch.setattr(distributed, "as_completed", lambda futures, **_: iter(futures))


@pytest.mark.usefixtures("finished_at_once")
def test_results_are_told_apart_from_errors_of_the_cluster() -> None:
    killed = distributed.KilledWorker("call", None, 3)
    client = Futures("a", LostProcessError("It died."), killed)
    values = list(cluster.call_on_cluster("m:f", [1, 2, 3], [0, 0, 0], client))
    assert values[0] == (0, "a")
    assert [type(result) for _, result in values[1:]] == [LostProcessError] * 2

    ((_, bug),) = cluster.call_on_cluster("m:f", [1], [0], Futures(KeyError("odd")))
    assert "Dask raised KeyError: 'odd'" in bug.message
    assert client.cancelled == ["call-1", "call-2"]
    for broken, text in (
        (ModuleNotFoundError("No module named 'profkit'"), "cannot import profkit"),
        (None, "ended, or cancelled"),
    ):
        with pytest.raises(UsageError, match=text):
            list(cluster.call_on_cluster("m:f", [1, 2], [0, 0], Futures("a", broken)))

    asynchronous = SimpleNamespace(asynchronous=True)
    with pytest.raises(UsageError, match="asynchronous"):
        list(cluster.call_on_cluster("m:f", [1], [0], asynchronous))


def test_a_worker_uses_its_process_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_idle", cluster._IdleProcesses())
    try:
        value = cluster.call_on_worker(f"{HERE}:squared", 3, 1)
        two = cluster.call_on_worker(f"{HERE}:squared", 4, 1)
        assert (value[0], two[0]) == (9, 16)
        assert value[1] == two[1], "the same process"
    finally:
        for process in cluster._idle._idle[f"{HERE}:squared"]:
            process.end()


def test_a_program_outside_of_a_cluster_has_no_client() -> None:
    with cluster.client_of_this_worker() as worker_client:
        assert worker_client is None


def test_the_json_of_unread_files_is_in_the_schema(job: Path) -> None:
    (job / "rank2.pt.trace.json.gz").write_bytes(b"\x1f\x8b and nothing")
    report = json.loads(render(analyze(job), "json"))
    assert [unread["file"] for unread in report["unread"]] == [str(job / "rank2.pt.trace.json.gz")]
