"""Traces of the ranks of a job with a planted delay and clocks, and reports on many ranks."""

import json
import random
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from profkit.api import analyze
from profkit.model.report import Report
from profkit.testing import TraceBuilder

LATE_NS = 900_000
REDUCE_NS = 2_000_000
CLOCK_NS = 7_000_000
"""What the clock of the second host shows too much."""
KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
N_STEPS = 4


def write_job(folder: Path, n_ranks: int = 2, n_warm_ups: int = 0) -> Path:
    """Steps with an all-reduce that the last rank joins late; ranks from 1 on have another host.

    Args:
        folder: Where the traces are written.
        n_ranks: Number of ranks.
        n_warm_ups: How often they do the same before the first step.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(n_ranks):
        late_ns = LATE_NS if rank == n_ranks - 1 else 0
        b = TraceBuilder(
            head={
                "distributedInfo": {"rank": rank, "world_size": n_ranks},
                "host_name": "one" if not rank else "other",
            }
        )
        args = {
            "Collective name": "allreduce",
            "dtype": "Float",
            "In msg nelems": 1 << 20,
            "Out msg nelems": 1 << 20,
            "Group size": n_ranks,
            "Process Group Name": "0",
            "Process Group Ranks": str([*range(n_ranks)]),
        }
        for number in range(n_warm_ups + N_STEPS):
            with b.step() if number >= n_warm_ups else nullcontext():
                b.compute("aten::add", 100_000 + late_ns)
                ident = b.call("LaunchKernel", 4_000)
                b.kernel(KERNEL, REDUCE_NS - late_ns, correlation=ident, **args, Seq=number)
                b.item()
        path = Path(b.write(folder / f"rank{rank}.pt.trace.json"))
        written = json.loads(path.read_text())
        written["baseTimeNanoseconds"] += CLOCK_NS if rank else 0
        path.write_text(json.dumps(written))

    return folder


def write_rank(rank: int, folder: Path, *, world_size: int = 3, begins_s: int = 5) -> Path:
    """Write three steps with an all-reduce of ranks 0 and 1 that rank 1 joins late, and an item."""
    b = TraceBuilder(
        head={
            "distributedInfo": {"rank": rank, "world_size": world_size},
            "host_name": "node",
        }
    )
    b.now_ns += begins_s * 1_000_000_000
    args = {
        "Collective name": "allreduce",
        "dtype": "Float",
        "In msg nelems": 1 << 20,
        "Out msg nelems": 1 << 20,
        "Group size": 2,
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
    }

    for number in range(3):
        with b.step():
            b.compute("aten::add", 100_000 + rank * LATE_NS)
            ident = b.call("LaunchKernel", 4_000)
            dur_ns = 2_000_000 - rank * LATE_NS
            b.kernel(KERNEL, dur_ns, correlation=ident, **args, Seq=number)
            b.item()

    return Path(b.write(folder / f"rank{rank}.pt.trace.json.gz"))


def write_ranks(folder: Path, n_ranks: int) -> Path:
    """Write the traces of some ranks into a new folder."""
    folder.mkdir()
    for rank in range(n_ranks):
        write_rank(rank, folder)
    return folder


def repeat_ranks(report: Report, n_ranks: int, n_steps: int) -> Report:
    """Return a report with copies of its ranks; rank 17's take a third longer without waiting."""
    generator = random.Random(0)  # noqa: S311  (no secret)
    assert report.lanes is not None
    ranks, lanes = [], []

    for rank in range(n_ranks):
        of, lane = report.ranks[rank % 2], report.lanes.lanes[rank % 2]
        speed = 1.33 if rank == 17 else 1.0
        times = tuple(
            round(10_000_000 * speed * generator.uniform(0.99, 1.01)) for _ in range(n_steps)
        )
        names = tuple(f"ProfilerStep#{number}" for number in range(n_steps))
        waits = tuple(round(14_000_000 - time) for time in times)
        ranks.append(
            replace(
                of,
                rank=rank,
                step_names=names,
                steps_wait_ns=waits,
                steps_ns=tuple(map(sum, zip(times, waits, strict=True))),
            )
        )
        steps = tuple(lane.steps[0] for _ in names)
        lanes.append(replace(lane, rank=rank, steps=steps))

    return replace(
        report,
        ranks=tuple(ranks),
        lanes=replace(report.lanes, lanes=tuple(lanes)),
        source=replace(report.source, world_size=n_ranks),
        missing_ranks=(),
    )


def job(folder: Path, n_ranks: int = 2) -> Report:
    """Return the report on a job."""
    return analyze(write_job(folder, n_ranks))
