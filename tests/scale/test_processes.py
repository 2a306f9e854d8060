"""Calls in processes of their own."""

import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from profkit import errors
from profkit.scale import processes, resources
from profkit.scale.processes import call_in_processes
from tests.scale.functions import HERE

posix = pytest.mark.skipif(not hasattr(os, "killpg"), reason="processes have no groups here")


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ended(pids: list[int]) -> bool:
    until = time.monotonic() + 20
    while any(map(is_running, pids)) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(map(is_running, pids))


def test_each_item_has_a_result_from_another_process(capfd: pytest.CaptureFixture[str]) -> None:
    results = dict(call_in_processes(f"{HERE}:squared", range(7), 2))
    assert {index: square for index, (square, _) in results.items()} == {n: n * n for n in range(7)}
    workers = {pid for _, pid in results.values()}
    assert os.getpid() not in workers
    assert 1 <= len(workers) <= 2, "a process carries out several calls"
    assert capfd.readouterr().out == "", "what it prints is no result"
    assert ended(list(workers))


def test_errors_are_results_with_all_their_parts() -> None:
    results = dict(call_in_processes(f"{HERE}:refused", range(3), 1))
    assert isinstance(results[0], errors.DamagedFileError)
    assert (results[0].message, results[0].hint) == ("It is damaged.", "Copy it.")
    assert isinstance(results[1], errors.SeveralTracesError)
    assert results[1].members == ("a", "b")
    assert isinstance(results[2], errors.InternalError)
    assert "ZeroDivisionError" in results[2].message


def test_every_error_survives_the_way_between_processes() -> None:
    for error in (errors.LeakError("grows", "fix", (1,)), errors.UsageError("wrong")):
        again = pickle.loads(pickle.dumps(error))  # noqa: S301
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


@posix
def test_a_process_that_dies_is_replaced_and_its_call_repeated_once(tmp_path: Path) -> None:
    once, always = f"{tmp_path}/once-1", f"{tmp_path}/always-9"
    results = dict(call_in_processes(f"{HERE}:killed", ["", once, always, "", ""], 2))
    assert [results[index] for index in (0, 1, 3, 4)] == [
        "alive",
        "alive at last",
        "alive",
        "alive",
    ]
    assert isinstance(results[2], errors.LostProcessError)
    assert "killed by SIGKILL" in results[2].message
    assert "memory" in results[2].hint
    assert Path(always).read_text() == "xx"


@posix
def test_whoever_stops_waiting_ends_the_processes_and_their_children(tmp_path: Path) -> None:
    path = tmp_path / "pids"
    results = call_in_processes(f"{HERE}:asleep", [str(path)], 1)

    def interrupt() -> None:
        until = time.monotonic() + 20
        while not (path.exists() and path.read_text()) and time.monotonic() < until:
            time.sleep(0.02)
        import _thread

        _thread.interrupt_main()

    # A shell that starts the tests in the background lets them ignore SIGINT.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt).start()
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            next(results)
    finally:
        signal.signal(signal.SIGINT, handler)
    results.close()
    assert time.monotonic() - began < 20
    assert ended([int(pid) for pid in path.read_text().split()])


@posix
def test_a_program_that_is_killed_takes_its_processes_along(tmp_path: Path) -> None:
    import subprocess

    path = tmp_path / "pids"
    code = (
        "from profkit.scale.processes import call_in_processes\n"
        f"next(call_in_processes('{HERE}:asleep', [{str(path)!r}], 1))"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    until = time.monotonic() + 20
    while not (path.exists() and path.read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    program.kill()
    program.wait()
    assert ended([int(pid) for pid in path.read_text().split()])


def test_a_process_imports_from_where_its_program_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    ((_, paths),) = call_in_processes(f"{HERE}:search_path", [None], 1)
    assert set(paths) == {folder or str(tmp_path) for folder in sys.path}


def test_processes_fit_into_memory_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "n_cores", lambda: 8)
    monkeypatch.setattr(resources, "free_bytes", lambda: 1000)
    assert resources.processes_for([100] * 20) == 8
    assert resources.processes_for([100] * 3) == 3
    assert resources.processes_for([100, 300, 300, 200]) == 3, "0.8 of what is free"
    assert resources.processes_for([5000, 5000]) == 1
    assert resources.processes_for([5000, 5000], most=2) == 2
    monkeypatch.setattr(resources, "free_bytes", lambda: None)
    assert resources.processes_for([5000] * 9) == 8


def test_limits_of_cgroups_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task_folder = tmp_path / "job" / "task"
    task_folder.mkdir(parents=True)
    proc = tmp_path / "cgroup"
    proc.write_text("0::/job/task\n")
    real = resources._text
    monkeypatch.setattr(resources, "_CGROUPS", tmp_path)
    monkeypatch.setattr(
        resources,
        "_text",
        lambda path: real(proc if str(path) == "/proc/self/cgroup" else path),
    )
    (task_folder / "memory.max").write_text("max\n")
    (task_folder / "memory.current").write_text("10\n")
    before = resources.free_bytes()
    (tmp_path / "job" / "memory.max").write_text("1000\n")
    (tmp_path / "job" / "memory.current").write_text("700\n")
    (tmp_path / "job" / "memory.stat").write_text("anon 500\ninactive_file 150\n")

    assert before is None or before > 1000
    assert resources.free_bytes() == 450

    (task_folder / "cpu.max").write_text("50000 100000\n")
    assert resources.n_cores() == 1
    (task_folder / "cpu.max").write_text("max 100000\n")
    assert resources.n_cores() >= 1

    # The first version of cgroups, seen from a container.
    proc.write_text("4:cpu,cpuacct:/x\n3:memory:/outside\n")
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("2000")
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("1900")
    assert resources.free_bytes() == 100


def test_memory_is_waited_for_unless_nobody_else_has_any() -> None:
    budget = resources.MemoryBudget(100)
    order: list[str] = []
    inside, second = threading.Event(), threading.Event()

    def late() -> None:
        second.set()
        with budget.taking(60):
            order.append("second")

    with budget.taking(500):
        inside.set()
        thread = threading.Thread(target=late)
        thread.start()
        second.wait(5)
        time.sleep(0.05)
        order.append("first")
    thread.join(5)
    assert order == ["first", "second"]


def test_an_interpreter_within_another_program_starts_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "")
    assert not processes.can_start()
