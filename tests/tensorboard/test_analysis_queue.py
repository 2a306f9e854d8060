"""Tasks run in separate processes, by priority; a failure affects only its own task."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from profkit.integrations.tensorboard.analysis_queue import AnalysisQueue, Task, TaskState
from profkit.integrations.tensorboard.cache import ResultCache, key_of

WORKER = """
import os, pathlib, sys, time
folder, task, *arguments = sys.argv[1:]
if task == "write":
    pathlib.Path(folder, "answer.json").write_text(arguments[0])
elif task == "wait":
    while not os.path.exists(arguments[0]):
        time.sleep(0.01)
elif task == "die":
    os.kill(os.getpid(), 9)
elif task == "log":
    with open(arguments[0], "a") as file:
        file.write(arguments[1])
else:
    sys.exit("no such task: " + task)
"""


@pytest.fixture
def cache(tmp_path: Path) -> ResultCache:
    return ResultCache(tmp_path / "cache")


@pytest.fixture
def queue(
    cache: ResultCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AnalysisQueue]:
    (tmp_path / "a_worker.py").write_text(WORKER)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = AnalysisQueue(cache, n_processes=1, timeout_s=20, worker="a_worker")
    yield made
    made.close()


def settled(queue: AnalysisQueue, key: str) -> TaskState:
    deadline = time.monotonic() + 60
    while (state := queue.state(key)).stage in {"queued", "analyzing"}:
        assert time.monotonic() < deadline, state
        time.sleep(0.01)
    return state


def test_a_result_is_cached_for_the_next_server(
    queue: AnalysisQueue, cache: ResultCache, tmp_path: Path
) -> None:
    assert queue.state("k").stage == "waiting"
    assert queue.submit(Task("k", ("write", "{}")), urgent=False).stage == "queued"
    assert settled(queue, "k").stage == "ready"
    assert cache.read("k", "answer.json") == b"{}"
    assert cache.read("k", "no-such-file") is None
    assert AnalysisQueue(ResultCache(tmp_path / "cache")).state("k").stage == "ready"


def test_a_process_that_dies_is_a_failure_that_can_be_retried(
    queue: AnalysisQueue, cache: ResultCache
) -> None:
    queue.submit(Task("dead", ("die",)), urgent=False)
    assert "signal 9" in settled(queue, "dead").message
    queue.submit(Task("odd", ("odd",)), urgent=False)
    assert "no such task: odd" in settled(queue, "odd").message
    assert queue.submit(Task("odd", ("write", "{}")), urgent=True).stage == "failed"
    assert queue.submit(Task("odd", ("write", "{}")), urgent=True, retry=True).stage == "queued"
    assert settled(queue, "odd").stage == "ready"
    assert not list(cache.folder.glob("draft-*"))


def test_a_slow_task_times_out(cache: ResultCache, tmp_path: Path) -> None:
    (tmp_path / "slow_worker.py").write_text(WORKER)
    sys.path.insert(0, str(tmp_path))
    try:
        slow = AnalysisQueue(cache, n_processes=1, timeout_s=0.3, worker="slow_worker")
        slow.submit(Task("slow", ("wait", str(tmp_path / "never"))), urgent=False)
        assert "timed out" in settled(slow, "slow").message
        slow.close()
    finally:
        sys.path.remove(str(tmp_path))


def test_urgent_tasks_run_first(queue: AnalysisQueue, tmp_path: Path) -> None:
    gate, log = tmp_path / "gate", tmp_path / "log"
    queue.submit(Task("first", ("wait", str(gate))), urgent=False)
    while queue.state("first").stage != "analyzing":
        time.sleep(0.01)
    queue.submit(Task("a", ("log", str(log), "a")), urgent=False)
    queue.submit(Task("b", ("log", str(log), "b")), urgent=False)
    queue.submit(Task("c", ("log", str(log), "c")), urgent=True)
    queue.submit(Task("b", ("log", str(log), "b")), urgent=True)
    gate.touch()
    for key in "abc":
        assert settled(queue, key).stage == "ready"
    assert log.read_text() == "bca"


def test_a_task_that_begins_while_it_is_submitted_again_runs_once(
    cache: ResultCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = AnalysisQueue(cache, n_processes=2)  # of which one is for urgent tasks
    gates = {"first": threading.Event(), "second": threading.Event()}
    ran: list[str] = []

    def execute(task: Task, **_: bool) -> TaskState:
        ran.append(task.key)
        gates[task.key].wait(20)
        return TaskState("failed")

    monkeypatch.setattr(queue, "_execute", execute)
    queue.submit(Task("first", ()), urgent=False)
    while not ran:
        time.sleep(0.01)
    queue.submit(Task("second", ()), urgent=False)
    state = queue.state

    def slow_state(key: str) -> TaskState:
        shown_state = state(key)
        gates["first"].set()
        until = time.monotonic() + 0.5
        while len(ran) == 1 and time.monotonic() < until:
            time.sleep(0.01)
        return shown_state

    with monkeypatch.context() as patched:
        patched.setattr(queue, "state", slow_state)
        queue.submit(Task("second", ()), urgent=True)
    time.sleep(0.2)  # for the other thread to run it again
    gates["second"].set()
    assert settled(queue, "second").stage == "failed"
    queue.close()
    assert ran == ["first", "second"]


def test_the_worker_exits_with_the_server() -> None:
    code = (
        "import time; from profkit.integrations.tensorboard import worker; "
        "worker._exit_with_parent(); print('up', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdin is not None
        assert worker.stdout.readline() == b"up\n"
        worker.stdin.close()
        assert worker.wait(30) == 1


def test_closing_kills_running_tasks(queue: AnalysisQueue, tmp_path: Path) -> None:
    queue.submit(Task("running", ("wait", str(tmp_path / "never"))), urgent=False)
    while queue.state("running").stage != "analyzing":
        time.sleep(0.01)
    queue.close()
    assert f"signal {signal.SIGKILL.value}" in settled(queue, "running").message


def test_the_cache_removes_the_least_recently_read_entries(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path, limit_bytes=2500)
    for number, name in enumerate("abc"):
        draft = cache.draft()
        (draft / "report.json").write_bytes(b"x" * 1000)
        cache.commit(draft, name)
        os.utime(tmp_path / name, (number, number))
    assert not cache.has("a")
    cache.read("b", "report.json")
    draft = cache.draft()
    (draft / "report.json").write_bytes(b"x" * 1000)
    cache.commit(draft, "d")
    assert [name for name in "abcd" if cache.has(name)] == ["b", "d"]


def test_the_cache_uses_a_temporary_folder_if_its_own_is_not_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    cache = ResultCache(tmp_path / "file" / "cache")
    assert cache.folder.is_dir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ResultCache().folder == tmp_path / "profkit" / "tensorboard"


def test_a_key_depends_on_every_part_and_on_the_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = {key_of("a", "b"), key_of("ab"), key_of("a", "c"), key_of("\udcff")}
    assert len(keys) == 4
    before = key_of("a")
    monkeypatch.setattr("profkit.integrations.tensorboard.cache.__version__", "9.9")
    assert key_of("a") != before


def test_one_process_is_reserved_for_urgent_tasks(
    cache: ResultCache, tmp_path: Path, queue: AnalysisQueue
) -> None:
    queue.close()
    two = AnalysisQueue(cache, timeout_s=20, worker="a_worker")
    gate = tmp_path / "gate"
    try:
        two.submit(Task("running", ("wait", str(gate))), urgent=False)
        two.submit(Task("behind", ("write", "{}")), urgent=False)
        two.submit(Task("wanted", ("write", "{}")), urgent=True)
        assert settled(two, "wanted").stage == "ready"
        assert two.state("running").stage == "analyzing"
        assert two.state("behind").stage == "queued"
        gate.touch()
        assert settled(two, "behind").stage == "ready"
    finally:
        two.close()
