"""Time and memory of an analysis, from the start of the process to the printed report.

A recorded trace is repeated, with times and ids shifted, to several sizes. For each, ``profkit
analyze`` is measured as a whole process, and so are programs that only decode the file, and peers:
loading a run in torch-tb-profiler's plugin, HolisticTraceAnalysis' loading and breakdowns, and
Perfetto's trace processor, which Node.js runs, with one query over all slices. Wall time, processor
time and peak memory include child processes and come from one run. Peers fail where they are not
installed; as HolisticTraceAnalysis needs an older pandas, the first two may have an environment of
their own. A bare decode counts with its processor time alone: it works in one thread, and how long
the system takes to give it gigabytes of memory is not its own. Perfetto imports the events and
relates none of them, so that nobody waits longer for a report than for its timeline is all that is
wanted there.

Run: ``python benchmarks/analyze.py [--mb 50 200 1000] [--peers-mb 200] [--peers PYTHON]
[--trace FILE]``
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.figures import compared
from benchmarks.load import ROOT, MemoryMonitor, read_source, repeat_events
from benchmarks.perfetto import trace_processor

BARE: Final = "msgspec"
TARGET_TIME: Final = 1.2
TARGET_TIME_LARGE: Final = 0.8
LARGE_BYTES: Final = 500_000_000
TARGET_MEMORY: Final = 0.35
TARGET_PEER_TIME: Final = 10
TARGET_PEER_MEMORY: Final = 5
_GIVE_UP_S: Final = 900

READERS: Final = {
    BARE: "import gc, msgspec; gc.disable(); kept = msgspec.json.decode(open(path, 'rb').read())",
    "json": "import gc, json; gc.disable(); kept = json.load(open(path, 'rb'))",
}
_TENSORBOARD: Final = """
import tempfile
from torch_tb_profiler.profiler.data import RunProfileData
from torch_tb_profiler.profiler.run_generator import RunGenerator
data = RunProfileData.parse("worker", 0, path, tempfile.mkdtemp())
kept = RunGenerator("worker", 0, data).generate_run_profile()
"""
_HTA: Final = """
from hta.trace_analysis import TraceAnalysis
kept = TraceAnalysis(trace_files={0: path})
kept.get_temporal_breakdown(visualize=False)
"""
PEERS: Final = {"torch-tb-profiler": _TENSORBOARD, "HolisticTraceAnalysis": _HTA}
PERFETTO: Final = "Perfetto under Node.js"
_PERFETTO: Final = "select name, count(*) as n, sum(dur) as ns from slice group by name"
PEER_TARGETS: Final = {
    **dict.fromkeys(PEERS, (TARGET_PEER_TIME, TARGET_PEER_MEMORY)),
    PERFETTO: (1, 1),
}
"""By peer, what it takes at least of the time and of the memory of profkit."""


@dataclass(frozen=True)
class Run:
    """Measurements of one process with its children.

    Attributes:
        seconds: Wall time.
        cpu_seconds: Processor time.
        peak_bytes: Peak memory.
        failed: Its error message, or empty.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    failed: str = ""


def run(arguments: list[str], python: str = sys.executable) -> Run:
    """Measure a process of an interpreter with these arguments."""
    before = os.times()
    begin = time.perf_counter()

    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [python, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,  # the worker of TensorBoard ends with its parent's end of it
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
        monitor = MemoryMonitor(process.pid)
        monitor.start()
        try:
            process.wait(_GIVE_UP_S)
        except subprocess.TimeoutExpired:
            process.kill()
        seconds = time.perf_counter() - begin
        monitor.over.set()
        monitor.join()
        code = process.wait()
        said.seek(0)
        lines = said.read().decode("utf-8", "replace").strip().splitlines()

    after = os.times()
    cpu = sum(after[2:4]) - sum(before[2:4])
    last = lines[-1] if lines else "killed"
    return Run(seconds, cpu, monitor.peak_bytes, last[:70] if code else "")


def compare(path: Path, peers: str | None) -> None:
    """Print a table of all programs on one file, with peers if an interpreter is given."""
    n_bytes = path.stat().st_size
    print(f"\n{n_bytes / 1e6:.0f} MB of text")
    print(f"{'program':<22} {'seconds':>8} {'cpu s':>7} {'x bare':>7} {'MB':>7} {'x text':>7}")
    statement = "import sys; path = sys.argv[1]\n"
    ours = run(["-m", "profkit", "analyze", str(path), "-o", os.devnull])
    runs = {"profkit analyze": ours}
    for name, code in READERS.items():
        runs[name] = run(["-c", statement + code, str(path)])
    for name, code in PEERS.items() if peers else ():
        runs[name] = run(["-c", statement + code, str(path)], peers or sys.executable)
    if peers:
        runs[PERFETTO] = perfetto(path)
    bare_s = runs[BARE].cpu_seconds

    for name, measured in runs.items():
        ratio, share = measured.seconds / bare_s, measured.peak_bytes / n_bytes
        times = f"{measured.seconds:8.2f} {measured.cpu_seconds:7.2f} {ratio:7.2f}"
        memory = f"{measured.peak_bytes / 1e6:7.0f} {share:7.2f}"
        print(f"{name:<22} {times} {memory} {measured.failed}".rstrip())

    ratio, share = ours.seconds / bare_s, ours.peak_bytes / n_bytes
    size = f"{n_bytes / 1e6:.0f} MB"
    target = TARGET_TIME if n_bytes < LARGE_BYTES else TARGET_TIME_LARGE
    compared(f"{size}: time, of a bare decode by msgspec", ratio, "x", target)
    compared(f"{size}: peak memory, of the text", share, "x", TARGET_MEMORY)
    for name, (time_target, memory_target) in PEER_TARGETS.items():
        if name not in runs or runs[name].failed:
            continue
        faster = runs[name].seconds / ours.seconds
        smaller = runs[name].peak_bytes / ours.peak_bytes
        compared(f"{size}: {name} takes longer", faster, "x", time_target, at_least=True)
        compared(f"{size}: {name} takes more memory", smaller, "x", memory_target, at_least=True)


def perfetto(path: Path) -> Run:
    """Measure how Perfetto loads a trace and answers one query; failed where it is missing."""
    if missing := trace_processor.missing():
        return Run(0, 0, 0, missing)
    node, *arguments = trace_processor.command(path, _PERFETTO)
    return run(arguments, node)


def main() -> None:
    """Create the files one after the other, and compare all programs on each."""
    parser = argparse.ArgumentParser(description="Compare an analysis as a whole process.")
    parser.add_argument(
        "--mb", type=int, nargs="+", default=[50, 200, 1000], help="sizes of the text"
    )
    parser.add_argument("--peers-mb", type=int, default=200, help="peers read no larger text")
    parser.add_argument(
        "--peers", default=sys.executable, help="the interpreter that has the peers in Python"
    )
    parser.add_argument("--trace", type=Path, help="the trace to repeat")
    options = parser.parse_args()

    trace = read_source(options.trace)

    for size in options.mb:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "repeated.pt.trace.json")
            with path.open("wb") as file:
                file.writelines(repeat_events(trace, size * 1_000_000))
            compare(path, options.peers if size <= options.peers_mb else None)


if __name__ == "__main__":
    main()
