"""``profkit run`` on all ranks of a job: real jobs of gloo, whose ranks are processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import profkit
from profkit.readers.open import load
from tests.capture.needs import HAS_GLOO_RECORDER

LIMIT_S = 240

START = """\
import os, sys, time
import torch
import torch.distributed as dist
from datetime import timedelta
from torch import nn
dist.init_process_group("gloo", timeout=timedelta(seconds=120), **GIVEN)
rank = dist.get_rank()
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
"""
TRAIN = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(i):
    if rank == 1 and "--slow" in sys.argv:
        time.sleep(0.05)
    model(torch.randn(32, 64)).sum().backward()  # the collectives
    optimizer.step()
    optimizer.zero_grad()
for i in range(14):
    step(i)
"""
DDP = START + "model = nn.parallel.DistributedDataParallel(model)\n" + TRAIN
FSDP = (
    START
    + "from torch.distributed.fsdp import fully_shard\n"
    + "from torch.distributed.device_mesh import init_device_mesh\n"
    + "fully_shard(model, mesh=init_device_mesh('cpu', (dist.get_world_size(),)))\n"
    + TRAIN
)
END = "print('rank', rank, 'is done')\ndist.destroy_process_group()\n"
WRITTEN = DDP.replace("range(14):\n", "range(2000):\n    time.sleep(0.002)\n")
"""It has written its recording at its end: the samples that explain it are complete in 3 s."""
KILLED = WRITTEN + "if rank == 1:\n    os.kill(os.getpid(), 9)\ndist.barrier()  # for rank 1\n"
HANGS = (
    DDP
    + "if rank != 1:\n    dist.all_reduce(torch.ones(3))  # the hang\n"
    + "else:\n    raise ValueError('no more batches')  # its cause\n"
)


@dataclass(frozen=True)
class Job:
    """How a job ended, and what it wrote.

    Attributes:
        errors: Its stderr.
        report: The report as JSON, or None.
        traces: The trace of each rank.
        dumps: All dumps of the FlightRecorder.
    """

    code: int
    out: str
    errors: str
    report: dict[str, Any] | None
    traces: dict[int, Path]
    dumps: list[Path]


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(Path(profkit.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
    }


def run_processes(folder: Path, commands: list[list[str]], variables: list[dict[str, str]]) -> Job:
    """Start processes at once, and wait for all; whatever happens, none is left."""
    started = [
        subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env=environment() | own_environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        for command, own_environment in zip(commands, variables, strict=True)
    ]

    try:
        written = [process.communicate(timeout=LIMIT_S) for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    report = folder / "report.json"
    traces = {}
    for path in sorted(folder.rglob("*.pt.trace.json.gz")):
        match = re.search(r"_rank(\d+)\.", path.name)
        assert match is not None
        assert int(match[1]) not in traces, "each rank has one trace"
        traces[int(match[1])] = path

    return Job(
        next((process.returncode for process in started if process.returncode), 0),
        "".join(out for out, _ in written),
        "".join(err for _, err in written),
        json.loads(report.read_text()) if report.exists() else None,
        traces,
        sorted(folder.rglob("*.flight.json.gz")),
    )


RUN = ("run", "--json", "report.json")


def with_torchrun(folder: Path, program: str, n: int, *args: str, inside: bool = False) -> Job:
    """Run a program on some ranks, with ``profkit run`` in torchrun or around it."""
    (folder / "train.py").write_text(program.replace("**GIVEN", ""))
    launcher = ("--standalone", "--nproc-per-node", str(n))
    command = ["-m", "profkit", *RUN, "torchrun", *launcher, "train.py", *args]

    if inside:
        command = [
            "-m",
            "torch.distributed.run",
            *launcher,
            "-m",
            "profkit",
            *RUN,
            "train.py",
            *args,
        ]

    return run_processes(folder, [command], [{}])


def step_names(trace: Path) -> list[str]:
    loaded = load(trace)
    assert hasattr(loaded, "events")
    names = {loaded.events.names[number] for number in loaded.events.name.tolist()}
    return sorted(name for name in names if name.startswith("ProfilerStep#"))


def line_of(program: str, mark: str) -> int:
    return 1 + next(i for i, text in enumerate(program.splitlines()) if f"# {mark}" in text)


def test_two_ranks_record_the_same_steps_and_rank_0_reports_on_both(tmp_path: Path) -> None:
    """Without torchrun: its own process takes a third of the time."""
    given = (
        "init_method='file://' + os.environ['STORE'], rank=int(os.environ['RANK']), world_size=2"
    )
    program = (DDP + END).replace("**GIVEN", given)
    (tmp_path / "train.py").write_text(program)
    shared = {"WORLD_SIZE": "2", "STORE": str(tmp_path / "store"), "MASTER_PORT": "7"}
    command = ["-m", "profkit", *RUN, "train.py", "--slow"]

    job = run_processes(
        tmp_path, [command] * 2, [{**shared, "RANK": str(rank)} for rank in range(2)]
    )
    assert job.code == 0, job.errors
    assert sorted(job.out.splitlines()) == ["rank 0 is done", "rank 1 is done"]
    assert job.errors.count("profkit 0.") == 1, "one report"
    assert sorted(job.traces) == [0, 1]
    assert len(job.dumps) == (4 if HAS_GLOO_RECORDER else 2), "at the end, and beside each trace"
    assert step_names(job.traces[0]) == step_names(job.traces[1])
    assert not list(tmp_path.rglob(".ranks-*")), "nothing else is left"

    report = job.report
    assert report is not None
    assert (report["source"]["kind"], report["missing_ranks"]) == ("ranks", [])
    (group,) = [group for group in report["collectives"]["groups"] if group["kind"] == "all-reduce"]
    assert group["ranks"] == [0, 1]
    # A busy machine can stop rank 0 for longer than rank 1 sleeps, in a step or two.
    n_late = {rank["rank"]: rank["n"] for rank in group["last"]}
    if HAS_GLOO_RECORDER:
        assert report["collectives"]["matched_share"] == 1
        assert group["group"] == "0"
        assert group["bus_bytes_per_s"], "the FlightRecorder has sizes"
        assert sum(n_late.values()) == len(report["summary"]["steps"])
    else:
        # Calls are matched by their times, which leaves some of them open.
        assert report["collectives"]["matched_share"] > 0.5
    assert group["last"][0]["rank"] == 1, n_late
    assert group["last"][0]["late_ns"] > n_late[1] * 25_000_000, "half of what it sleeps"
    assert not [finding for finding in report["findings"] if finding["rule"] == "COM003"]


@pytest.mark.slow
@pytest.mark.parametrize("inside", [True, False])
def test_torchrun_inside_and_around(tmp_path: Path, inside: bool) -> None:  # noqa: FBT001
    job = with_torchrun(tmp_path, DDP + END, 2, "--slow", inside=inside)
    assert job.code == 0, job.errors
    assert sorted(job.traces) == [0, 1]
    assert step_names(job.traces[0]) == step_names(job.traces[1])
    assert all("_restart0_rank" in path.name for path in job.traces.values())
    assert job.report is not None
    (group,) = [
        group for group in job.report["collectives"]["groups"] if group["kind"] == "all-reduce"
    ]
    assert group["last"][0]["rank"] == 1
    assert "Traceback" not in job.errors
    assert "RuntimeWarning" not in job.errors


@pytest.mark.slow
def test_fsdp_on_four_ranks(tmp_path: Path) -> None:
    job = with_torchrun(tmp_path, FSDP + END, 4)
    assert job.code == 0, job.errors
    assert sorted(job.traces) == [0, 1, 2, 3]
    assert job.report is not None
    # Gloo reduces and scatters by an all-reduce.
    kinds = {group["kind"] for group in job.report["collectives"]["groups"]}
    assert {"all-gather", "all-reduce"} <= kinds
    assert job.report["collectives"]["matched_share"] > 0.8
    assert not [finding for finding in job.report["findings"] if finding["rule"] == "COM003"]


def with_two_processes(folder: Path, program: str, port: int) -> Job:
    """Run a program on two ranks without torchrun, whose own process takes a third of the time."""
    given = (
        "init_method='file://' + os.environ['STORE'], rank=int(os.environ['RANK']), world_size=2"
    )
    (folder / "train.py").write_text(program.replace("**GIVEN", given))
    shared = {"WORLD_SIZE": "2", "STORE": str(folder / "store"), "MASTER_PORT": str(port)}
    command = ["-m", "profkit", *RUN, "train.py"]
    return run_processes(
        folder, [command] * 2, [{**shared, "RANK": str(rank)} for rank in range(2)]
    )


MARK = "    open('failed_at', 'w').write(str(time.time()))\n"
RAISES = MARK + "    raise ValueError('no more batches')\n"
MAX_END_S = 30
"""Ranks that waited for each other took 57 s and more; without waits the rest is a busy machine."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failing", "end", "cause"),
    [
        (0, RAISES, "rank 0 raised ValueError: no more batches (train.py:"),
        (1, RAISES, "rank 1 raised ValueError: no more batches (train.py:"),
        (1, MARK + "    sys.exit(3)\n", "rank 1 exited with code 3 (train.py:"),
        (0, MARK + "    os._exit(4)\n", "rank 0 ended without a Python exception: "),
        # It needs no more collectives, and rank 0 fails in one that lacks it.
        (1, MARK + "    sys.exit()\n", "rank 0 raised RuntimeError: "),
    ],
    ids=["rank 0 raises", "rank 1 raises", "rank 1 exits", "rank 0 dies", "rank 1 ends well"],
)
def test_a_job_ends_soon_after_a_rank_and_says_first_why(
    tmp_path: Path, failing: int, end: str, cause: str
) -> None:
    # What dies at once writes nothing more.
    steps = WRITTEN if "os._exit" in end else DDP
    program = steps + f"if rank == {failing}:\n{end}"
    job = with_two_processes(tmp_path, program + "dist.barrier()\n", 10 + failing)
    assert time.time() - float((tmp_path / "failed_at").read_text()) < MAX_END_S
    assert job.code != 0
    assert job.errors.count("profkit 0.") == 1, "one report"
    before, _, _ = job.errors.partition("profkit 0.")
    assert f"profkit: the job failed: {cause}" in before
    assert "waiting for" not in job.errors
    assert sorted(job.traces) == [0, 1]
    assert not list(tmp_path.rglob(".ranks-*"))


@pytest.mark.slow
@pytest.mark.parametrize("inside", [True, False])
def test_torchrun_ends_soon_after_a_rank_that_fails(
    tmp_path: Path,
    inside: bool,  # noqa: FBT001
) -> None:
    program = DDP + f"if rank == 1:\n{RAISES}dist.barrier()\n"
    job = with_torchrun(tmp_path, program, 2, inside=inside)
    assert time.time() - float((tmp_path / "failed_at").read_text()) < MAX_END_S
    assert job.code != 0
    assert job.errors.count("profkit 0.") == 1, "one report"
    assert "profkit: the job failed: rank 1 raised ValueError: no more batches" in job.errors
    assert not list(tmp_path.rglob(".ranks-*"))


@pytest.mark.slow
def test_a_rank_that_is_killed_is_named_and_the_others_report(tmp_path: Path) -> None:
    job = with_torchrun(tmp_path, KILLED, 2)
    assert job.code != 0
    assert "profkit: rank 1 died; what was recorded until then is in the report." in job.errors
    assert job.report is not None
    assert [rank["rank"] for rank in job.report["ranks"]] == [0, 1], "its steps were written"


@pytest.mark.slow
def test_when_rank_0_is_killed_the_next_one_reports(tmp_path: Path) -> None:
    job = with_torchrun(tmp_path, KILLED.replace("if rank == 1:", "if rank == 0:"), 2)
    assert "profkit: rank 0 died; what was recorded until then is in the report." in job.errors
    assert job.report is not None
    assert job.report["source"]["kind"] == "ranks"


@pytest.mark.slow
def test_a_rank_that_ends_long_before_the_last_one_does_not_wait(tmp_path: Path) -> None:
    """Rank 1 saves a checkpoint, and reports: rank 0 has left."""
    saves = "if rank == 1:\n    time.sleep(8)\nprint('rank', rank, 'is done')\n"
    job = with_two_processes(tmp_path, DDP + saves, 8)
    assert job.code == 0
    assert "profkit: rank 1 will report on the job." in job.errors
    assert job.errors.count("profkit 0.") == 1, "one report"
    assert job.report is not None
    assert job.report["source"]["kind"] == "ranks"
    assert not list(tmp_path.rglob(".ranks-*"))


@pytest.mark.slow
def test_of_a_rank_that_fails_the_others_wait_in_vain(tmp_path: Path) -> None:
    job = with_torchrun(tmp_path, HANGS, 2)
    assert job.code != 0
    assert job.report is not None
    findings = {finding["rule"]: finding for finding in job.report["findings"]}
    assert "COM003" not in findings, "it would be a second finding of one cause"
    raised = f"Rank 1 raised ValueError: no more batches at train.py:{line_of(HANGS, 'its cause')}."
    assert findings["COM012"]["message"] == f"{raised} Rank 0 ended after it."
    assert "ValueError: no more batches" in job.errors


@pytest.mark.slow
def test_the_interface_names_files_by_rank(tmp_path: Path) -> None:
    """``profkit.trace`` under torchrun, without ``profkit run``."""
    program = (
        DDP.replace("import torch\n", "import torch, profkit\n", 1).replace(
            "for i in range(14):\n    step(i)\n",
            "with profkit.trace('train', wait=2, warmup=1, active=3) as t:\n"
            "    for i in range(14):\n        step(i)\n        t.step()\n",
        )
        + END
    )
    (tmp_path / "train.py").write_text(program.replace("**GIVEN", ""))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]

    job = run_processes(tmp_path, [launcher], [{}])
    assert job.code == 0, job.errors
    assert sorted(job.traces) == [0, 1]
    assert step_names(job.traces[0]) == step_names(job.traces[1])
    assert profkit.analyze(tmp_path / "traces").collectives is not None
    assert len(job.dumps) == 2
