"""Workers that a program spawns record themselves, and change nothing of the program."""

import json
import multiprocessing
import operator
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures.process import _process_worker
from functools import partial
from multiprocessing import context, pool, spawn
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch.multiprocessing.spawn import _wrap
from torch.utils.data._utils.worker import _worker_loop

from profkit.capture.process.files import safe_name
from profkit.capture.recording.options import Options
from profkit.capture.recording.schedule import Schedule
from profkit.capture.run.plan import Plan
from profkit.capture.run.spawned import MAX_WORKERS, SpawnedWorkers
from tests.processes import start
from tests.step_counts import count_steps

JOB = """\
import socket, sys, time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

def train(rank, port, fails):
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.ones(8, 8)).sum().backward()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()
    if fails and rank == 1:
        raise ValueError("rank 1 is broken")
    print("done", flush=True)

if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(train, args=(port, "fail" in sys.argv), nprocs=2)
    print("end")
"""


def plan(folder: Path) -> Plan:
    return Plan("train", Options(folder=str(folder), quiet=True), Schedule(2, 2, 3))


@pytest.fixture
def workers(tmp_path: Path) -> SpawnedWorkers:
    return SpawnedWorkers(plan(tmp_path), tmp_path)


def test_a_worker_without_torch_runs_as_it_would(
    workers: SpawnedWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A worker imports the program's main module: here whatever an earlier test has left there.
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    original = context.SpawnProcess._Popen
    workers.watch()
    try:
        process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(0,))
        process.start()
        attributes = vars(process)
        process.join()
    finally:
        workers.stop()

    assert process.exitcode == 0
    assert not [name for name in attributes if "profkit" in name]
    assert context.SpawnProcess._Popen is original

    # It was watched to its end, and has recorded nothing.
    (said,) = tmp_path.glob("train/.workers-*/0")
    assert json.loads(said.read_text()) == []
    assert workers.end() == ([], 0)
    assert not list(tmp_path.glob("train/.workers-*"))


@pytest.mark.parametrize(
    ("target", "is_worker"),
    [
        (operator.add, True),
        (partial(print, 1), True),
        (_wrap, True),
        (_worker_loop, False),
        (pool.worker, False),  # type: ignore[attr-defined]
        (_process_worker, False),
    ],
)
def test_what_libraries_start_is_not_a_worker(
    workers: SpawnedWorkers,
    target: Callable[..., Any],
    is_worker: bool,  # noqa: FBT001
) -> None:
    assert workers._is_worker(context.SpawnProcess(target=target)) is is_worker


def test_another_python_may_have_no_profkit(
    workers: SpawnedWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawn, "_python_exe", "/opt/other/bin/python")
    assert not workers._is_worker(context.SpawnProcess(target=operator.add))


def test_only_the_first_of_many_processes_are_workers(workers: SpawnedWorkers) -> None:
    process = context.SpawnProcess(target=operator.add)
    for _ in range(MAX_WORKERS):
        assert workers._is_worker(process)
        workers._make_order()
    assert not workers._is_worker(process)
    assert workers.end() == ([], MAX_WORKERS)


@pytest.mark.skipif(os.name != "posix", reason="processes are only known on POSIX")
def test_the_folders_of_killed_programs_are_removed_by_the_next_one(tmp_path: Path) -> None:
    code = "import os; print(os.getpid())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    traces, host = tmp_path / "train", safe_name(socket.gethostname())
    names = {f".workers-{host}_{pid}": pid for pid in (os.getpid(), int(run.stdout))}
    for name in [*names, ".workers-elsewhere_1", f".workers-{host}_x"]:
        (traces / name).mkdir(parents=True)
        (traces / name / "0").write_text("[]")
    SpawnedWorkers(plan(tmp_path), tmp_path)
    assert {path.name for path in traces.iterdir()} == {
        f".workers-{host}_{os.getpid()}",
        ".workers-elsewhere_1",
        f".workers-{host}_x",
    }


@pytest.mark.slow
@pytest.mark.parametrize(("argument", "code"), [("", 0), ("fail", 1)])
def test_spawned_ranks_get_one_report(argument: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB, encoding="utf-8")
    bare = start(tmp_path, "job.py", argument)
    command = ("-m", "profkit", "run", "--json", "job.json", "job.py", argument)
    ended = start(tmp_path, *command)
    assert (bare.code, ended.code, ended.out) == (code, code, bare.out)
    report = json.loads((tmp_path / "job.json").read_text(encoding="utf-8"))
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    assert count_steps(report["summary"]) == 3
    assert ("ValueError: rank 1 is broken" in ended.err) == bool(code)
    assert not list(tmp_path.glob("traces/job/.workers-*"))
    # Nothing of profkit is in the program's traceback.
    traceback = ended.err.partition("Traceback")[2].partition("profkit 0")[0]
    assert "profkit/capture" not in traceback


@pytest.mark.slow
def test_the_spawned_worker_that_trains_is_reported_on(tmp_path: Path) -> None:
    program = Path(__file__).parents[1] / "programs" / "spawned_workers.py"
    ended = start(tmp_path, "-m", "profkit", "run", "--json", "report.json", str(program))
    assert (ended.code, ended.out) == (0, "seeds [0, 1]\nexit codes [0, 0]\n")
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert count_steps(report["summary"]) == 3
    assert "other processes were recorded as well" in ended.err
    assert len(list(tmp_path.glob("traces/spawned_workers/*.pt.trace.json.gz"))) == 3
