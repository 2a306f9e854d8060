"""``profkit trigger``, ``stacks`` and ``top``: what they say, and a real job of two ranks."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import profkit
from profkit.capture.live.endpoint import Endpoint
from profkit.capture.live.listener import ProgramListener
from profkit.cli.main import main
from profkit.cli.stacks import format_stacks
from profkit.cli.top import format_table, measure_interval
from profkit.model.trace import Trace
from profkit.readers.open import load

PROGRAM = """\
import sys, time, torch, torch.distributed as dist
import profkit
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
profkit.trace  # any use of profkit begins to listen, as PROFKIT_LISTEN asks
def train(n):
    for i in range(n):
        with torch.profiler.record_function(f"step {i}"):
            loss = model(torch.ones(8)).sum()
            loss.backward()
            dist.all_reduce(model.weight.grad)
            optimizer.step()
            time.sleep(0.01)
def hang():
    time.sleep(1000)
train(int(sys.argv[1]))
hang()
"""


def figures(n_steps: int, *, ends: list[int], **changes: object) -> dict[str, Any]:
    return {
        "rank": 3,
        "world_size": 4,
        "pid": 17,
        "n_steps": n_steps,
        "ends_ns": ends,
        "waits_ns": [end // 10 for end in ends],
        "now_ns": ends[-1] + 5_000_000 if ends else 0,
        "steps": "optimizer",
        "n_syncs": None,
        "memory": {"host": 3 << 20},
        "is_recording": False,
    } | changes


def row(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    (line,) = format_table([measure_interval(now, before, before)], with_title=False)
    return line.split()


@pytest.mark.parametrize(("rank", "title"), [(3, "rank"), (None, "process")])
def test_a_program_that_is_no_rank_is_named_by_its_process(rank: int | None, title: str) -> None:
    now = figures(5, ends=[10_000_000], rank=rank)
    titles, line = format_table([measure_interval(now, now, now)], with_title=True)
    assert titles.split()[0] == title
    assert line.split()[0] == str(now["pid"] if rank is None else rank)


def test_top_shows_mean_and_range_of_the_steps_since_the_last_look() -> None:
    before = figures(5, ends=[10_000_000], memory={"host": 1 << 20, "cuda:0": 4 << 20})
    ends = [10_000_000, 20_000_000, 50_000_000]
    now = figures(7, ends=ends, memory={"host": 3 << 20, "cuda:0": 3 << 20})
    assert " ".join(row(now, before)) == (
        "3 7 20.0 ms 10.0 ms to 30.0 ms 50.0 10% - host 3.00 MiB, cuda:0 3.00 MiB "
        "host +2.00 MiB, cuda:0 -1.00 MiB in 2 steps"
    )


def test_top_leaves_out_the_steps_that_the_answer_has_of_earlier_looks() -> None:
    before = figures(6, ends=[10_000_000, 20_000_000])
    now = figures(7, ends=[10_000_000, 20_000_000, 23_000_000])
    assert measure_interval(now, before, before).steps_ns == (3_000_000,)


def test_top_counts_syncs_per_step() -> None:
    before = figures(5, ends=[10_000_000], n_syncs=10)
    now = figures(9, ends=[10_000_000, *range(20_000_000, 60_000_000, 10_000_000)], n_syncs=16)
    assert row(now, before)[-10] == "1.50"


def test_top_says_since_when_no_step_has_ended() -> None:
    before = figures(5, ends=[10_000_000])
    assert "none for 5.00 ms" in " ".join(row(before, before))
    assert "none" not in " ".join(row(figures(0, ends=[]), figures(0, ends=[])))


def test_top_marks_a_recording_and_a_program_without_ranks_has_its_process() -> None:
    before = figures(5, ends=[10_000_000], rank=None, is_recording=True)
    assert row(before, before)[:2] == ["17", "5*"]


def test_stacks_group_the_ranks_that_are_at_one_place() -> None:
    place, other_place = [["a.py", 1, "main"], ["a.py", 7, "wait"]], [["a.py", 1, "main"]]
    answers = {
        Endpoint("job", "host", pid, "", 0): {
            "rank": rank,
            "pid": pid,
            "stacks": [["loader", [["b.py", 2, "run"]]], ["MainThread", stack]],
        }
        for rank, (pid, stack) in enumerate([(10, place), (11, other_place), (12, place)])
    }

    assert list(format_stacks(answers)) == [
        "ranks 0, 2: MainThread",
        "  a.py:1  main",
        "  a.py:7  wait",
        "",
        "rank 1: MainThread",
        "  a.py:1  main",
        "",
        "ranks 0 to 2: loader",
        "  b.py:2  run",
        "",
    ]


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[ProgramListener]:
    opened = profkit.listen("job", dir=tmp_path)
    assert isinstance(opened, ProgramListener)
    yield opened
    opened.stop()


def test_trigger_says_that_nothing_listens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trigger", str(tmp_path)]) == 4
    assert "No program listens in" in capsys.readouterr().err


def test_trigger_gives_up_if_the_steps_do_not_come(
    listening: ProgramListener, capsys: pytest.CaptureFixture[str]
) -> None:
    listening.step()
    assert main(["trigger", str(listening.folder), "--timeout", "0.1"]) == 4
    errors = capsys.readouterr().err
    assert "The 3 steps were not recorded within 0.1 s." in errors
    assert f"profkit stacks {listening.folder} shows" in errors


def test_trigger_says_that_a_program_ends_no_steps(
    listening: ProgramListener, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):  # the first one, which was given up, does not refuse the second
        assert main(["trigger", str(listening.folder), "--timeout", "0.1"]) == 4
        errors = capsys.readouterr().err
        assert "No step of the program in" in errors
        assert "call step() of the object that profkit.listen() returns" in errors


def test_trigger_says_why_it_is_refused(
    listening: ProgramListener, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with profkit.trace("own", dir=tmp_path, quiet=True):
        assert main(["trigger", str(listening.folder)]) == 4
    assert "records nothing: the program is recording “own” itself." in capsys.readouterr().err


def test_trigger_says_that_the_program_has_ended(
    listening: ProgramListener, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop() -> None:
        while listening._recorder.request is None:
            time.sleep(0.01)
        listening._server.stop()

    thread = threading.Thread(target=stop)
    thread.start()
    assert main(["trigger", str(listening.folder)]) == 4
    thread.join()
    assert "has ended before its steps were recorded." in capsys.readouterr().err


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the folder of a job of two ranks that trains and then hangs."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "train.py").write_text(PROGRAM)
    environment = {
        "PYTHONPATH": str(Path(profkit.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "PROFKIT_LISTEN": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(20_000 + os.getpid() % 20_000),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "train.py", "600"],
            cwd=folder,
            env={**os.environ, **environment, "RANK": rank},
        )
        for rank in "01"
    ]
    run = folder / "traces" / "train"
    until = time.monotonic() + 100
    while len(list(run.glob(".listen-*"))) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    yield run

    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_job_of_two_ranks(job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(1) as pool:
        top = pool.submit(main, ["top", str(job), "--once"])
        assert main(["trigger", str(job), "--steps", "2", "-o", str(job / "report.txt")]) == 0
        assert top.result() == 0
    assert "2 processes" in capfd.readouterr().err

    recorded = []
    for path in sorted(job.glob("*.pt.trace.json.gz")):
        trace = load(path)
        assert isinstance(trace, Trace)
        recorded.append({name for name in trace.events.names if name.startswith("step ")})
    assert len(recorded) == 2
    assert recorded[0] == recorded[1] != set()

    while "hang" not in stacks(job, capfd):
        time.sleep(0.2)
    out = stacks(job, capfd)
    assert out.startswith("ranks 0, 1: MainThread\n")
    assert out.splitlines()[2].endswith("train.py:17  hang")


def stacks(job: Path, capfd: pytest.CaptureFixture[str]) -> str:
    assert main(["stacks", str(job)]) == 0
    return capfd.readouterr().out
