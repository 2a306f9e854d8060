"""Time and memory of one report over many ranks, and their growth with the number of ranks.

A trace of steps with operators, kernels and all-reduces is written for each rank. For several
numbers of ranks, ``profkit analyze FOLDER`` is measured as a whole: wall time, processor time with
that of its processes, and the peak memory of any one of them, beside that of one rank alone.

Run: ``python benchmarks/ranks.py [--scale 0.1] [--hta hta/bin/python]``, which scales the number of
ranks, and lets HolisticTraceAnalysis in an environment of its own analyze the first ranks
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import psutil
from isal import igzip

from benchmarks.figures import compared
from benchmarks.load import ROOT
from profkit.testing import TraceBuilder

SIZES: Final = ((64, 50), (1000, 5))
"""Ranks, and megabytes of text of each."""
SAMPLE_S: Final = 0.05
OPERATORS: Final = 20
"""Operators with a kernel between two collectives."""
TARGET_BYTES: Final = 200 << 20
TARGET_GROWTH: Final = 2.1
"""By how much a process may exceed that of one rank."""
_GIVE_UP_S: Final = 3600
HTA_RANKS: Final = 8
HTA_S: Final = 300
_HTA: Final = """
import sys
from hta.trace_analysis import TraceAnalysis

if __name__ == "__main__":
    analysis = TraceAnalysis(trace_files=dict(enumerate(sys.argv[1:])))
    analysis.get_temporal_breakdown(visualize=False)
    analysis.get_comm_comp_overlap(visualize=False)
"""


class PeakMonitor(threading.Thread):
    """The largest peak of resident memory among a process and its children.

    Args:
        pid: The process.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.process = psutil.Process(pid)
        self.over = threading.Event()
        self.parent_bytes = 0
        self.child_bytes = 0

    def run(self) -> None:
        """Sample until the event ``over`` is set."""
        while not self.over.wait(SAMPLE_S):
            with contextlib.suppress(psutil.Error):
                self.parent_bytes = max(self.parent_bytes, peak_bytes(self.process))
                for child in self.process.children(recursive=True):
                    self.child_bytes = max(self.child_bytes, peak_bytes(child))


def peak_bytes(process: psutil.Process) -> int:
    """Return the peak of a process so far; its present memory where the system has no peak."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return int(process.memory_info().rss)


@dataclass(frozen=True)
class Run:
    """Measurements of one analysis.

    Attributes:
        seconds: Wall time.
        cpu_seconds: Processor time, that of all processes.
        parent_bytes: Peak memory of the process that joins the ranks.
        child_bytes: The largest peak of those that it starts.
        report: The JSON report.
    """

    seconds: float
    cpu_seconds: float
    parent_bytes: int
    child_bytes: int
    report: dict[str, Any]


def run_analysis(path: Path) -> Run:
    """Analyze a file or a folder in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "report.json")
        run = run_measured(
            [
                sys.executable,
                "-m",
                "profkit",
                "analyze",
                str(path),
                "--format",
                "json",
                "-o",
                str(out),
            ],
            _GIVE_UP_S,
        )

        return replace(run, report=json.loads(out.read_bytes()))


def run_measured(command: list[str], limit_s: int) -> Run:
    """Run a program.

    Raises:
        subprocess.TimeoutExpired: It takes longer than the limit.
        SystemExit: It failed.
    """
    before, began = os.times(), time.perf_counter()
    process = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL
    )
    monitor = PeakMonitor(process.pid)
    monitor.start()

    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        for process_to_end in (*monitor.process.children(recursive=True), process):
            process_to_end.kill()
        raise
    finally:
        monitor.over.set()
        monitor.join()

    if code:
        raise SystemExit(f"{' '.join(command[:4])} ended with {code}.")
    after = os.times()
    cpu = sum(after[2:4]) - sum(before[2:4])
    seconds = time.perf_counter() - began
    return Run(seconds, cpu, monitor.parent_bytes, monitor.child_bytes, {})


def print_hta(python: str, job: Path) -> None:
    """Measure HolisticTraceAnalysis with the first ranks of a job."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "run_hta.py")
        script.write_text(_HTA)
        files = [str(path) for path in sorted(job.iterdir())[:HTA_RANKS]]
        try:
            run = run_measured([python, str(script), *files], HTA_S)
        except subprocess.TimeoutExpired:
            print(f"HTA, {len(files)} ranks: not done in {HTA_S} s", flush=True)
        else:
            print(row(len(files), run) + "  HTA", flush=True)


def row(n_ranks: int, run: Run) -> str:
    """Return the figures of a run as a line of the table."""
    return (
        f"{n_ranks:6} {run.seconds:8.1f} {run.cpu_seconds:7.1f} {run.cpu_seconds / n_ranks:10.2f} "
        f"{run.parent_bytes / 1e6:10.0f} {run.child_bytes / 1e6:9.0f}"
    )


def build_trace_of_a_rank(n_bytes: int, world_size: int) -> bytes:
    """Build the trace of rank 0, with steps until its text has about a given size."""
    world = {"pg_name": "0", "pg_desc": "default_pg", "ranks": list(range(world_size))}
    head = {"distributedInfo": {"rank": 0, "world_size": world_size, "pg_config": [world]}}
    builder = TraceBuilder(head=head)
    args = {
        "Collective name": "allreduce",
        "dtype": "BFloat16",
        "In msg nelems": 1 << 20,
        "Out msg nelems": 1 << 20,
        "Group size": world_size,
        "Process Group Name": "0",
    }
    about, seq = 0, 0

    while about < n_bytes:
        with builder.step():
            for _ in range(20):
                for _ in range(OPERATORS):
                    builder.launch("aten::mm", kernel="gemm", host_ns=9_000, device_ns=50_000)
                ident = builder.call("LaunchKernel", 4_000)
                builder.kernel(
                    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
                    200_000,
                    correlation=ident,
                    Seq=seq,
                    **args,
                )
                seq += 1
        about += 20 * OPERATORS * 520

    return builder.to_bytes()


def main() -> None:
    """Write the traces, and measure a growing number of them."""
    parser = argparse.ArgumentParser(description="Measure reports over many ranks.")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the ranks")
    parser.add_argument("--hta", metavar="PYTHON", help="one that has HolisticTraceAnalysis")
    options = parser.parse_args()

    for most, mb in SIZES:
        n_ranks = max(4, round(most * options.scale))
        with tempfile.TemporaryDirectory() as folder:
            job = Path(folder, "job")
            job.mkdir()
            text = build_trace_of_a_rank(mb * 1_000_000, n_ranks)
            print(f"\n{n_ranks} ranks, each {len(text) / 1e6:.0f} MB of text")
            print(
                f"{'ranks':>6} {'seconds':>8} {'cpu s':>7} {'cpu s/rank':>10} "
                f"{'parent MB':>10} {'child MB':>9} {'matched':>8}"
            )
            runs: dict[int, Run] = {}
            for rank in range(n_ranks):
                rank_text = text.replace(b'"rank":0', f'"rank":{rank}'.encode(), 1)
                target = job / f"rank{rank:04}.pt.trace.json.gz"
                target.write_bytes(igzip.compress(rank_text, 1))
                n = rank + 1
                if n not in {1, n_ranks // 4, n_ranks // 2, n_ranks}:
                    continue
                run = runs[n] = run_analysis(job if n > 1 else target)
                collectives = run.report.get("collectives") or {}
                print(f"{row(n, run)} {collectives.get('matched_share', 0):8.0%}", flush=True)
            if options.hta:
                print_hta(options.hta, job)
            half, whole, alone = runs[n_ranks // 2], runs[n_ranks], runs[1]
            above = max(whole.parent_bytes, whole.child_bytes) - alone.parent_bytes
            job_size = f"{n_ranks} ranks of {mb} MB"
            growth = whole.cpu_seconds / half.cpu_seconds
            compared(
                f"{job_size}: processor time, of that of half the ranks", growth, "x", TARGET_GROWTH
            )
            compared(
                f"{job_size}: memory of any process above that of one rank",
                above >> 20,
                "MiB",
                TARGET_BYTES >> 20,
            )


if __name__ == "__main__":
    main()
