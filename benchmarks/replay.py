"""Time and memory of replaying a recording, as ratios to the time of reading it.

Recordings of a given number of events are written, each the worst case of something: of launches,
of synchronization, of streams, of kernels per graph launch, of threads, of steps, of batches. A
process of its own reads each, and then measures the processor time that the replay adds: building
the graph, one replay with a change, and the critical path. The better of two runs is used. The last
figure is the time for all events as a multiple of the time for a quarter of them: 4 is linear.

Run: ``python benchmarks/replay.py [--events 1000000] [--case NAME]``
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from benchmarks.figures import compared

ROOT: Final = Path(__file__).parents[1]
ROUNDS: Final = 2
TARGET_RATIO: Final = 1.0
"""Build, replay and critical path should take no longer than reading the trace."""
TARGET_S: Final = 2.0
"""Target for a million events."""
GRAPH_KERNELS: Final = 100_000
N_STREAMS: Final = 64
N_THREADS: Final = 200
STEP_KERNELS: Final = 20
_PROCESS: Final = """
import json, sys
import numpy as np
from resource import RUSAGE_SELF, getrusage
from profkit.engine.context import Context
from profkit.model.change import ProgramChange
from profkit.readers.open import load
def peak():
    return getrusage(RUSAGE_SELF).ru_maxrss
def clock():
    return sum(getrusage(who).ru_utime + getrusage(who).ru_stime for who in (-1, 0))
begin = clock()
trace = load(sys.argv[1])
times = [clock() - begin]
ctx = Context(trace=trace)
ctx.launches, ctx.syncs, ctx.data_waits, ctx.is_communication
before = peak()
begin = clock()
replay = ctx.replay
times.append(clock() - begin)
begin = clock()
change = ProgramChange(calls=ctx.syncs.rows, scaled=((ctx.launches.work[::2], 0.5),))
replay.length_ns(replay.replay(change))
times.append(clock() - begin)
begin = clock()
path = ctx.critical_path
times.append(clock() - begin)
print(json.dumps([len(ctx.events), *times, (peak() - before) * 1024]))
"""


class Recording:
    """Text of a trace, event by event. Times are in microseconds."""

    def __init__(self) -> None:
        self.ids = 0
        self.host_us = 0
        self.free_us: dict[int, int] = {}

    def host(self, cat: str, name: str, dur_us: int, tid: int = 1, ts_us: int | None = None) -> str:
        """Return a host event, which advances the host's clock unless ``ts_us`` is given."""
        start = self.host_us if ts_us is None else ts_us
        if ts_us is None:
            self.host_us += dur_us
        self.ids += 1
        return (
            f'{{"ph":"X","cat":"{cat}","name":"{name}","pid":9,"tid":{tid},"ts":{start},'
            f'"dur":{dur_us},"args":{{"correlation":{self.ids},"External id":{self.ids}}}}}'
        )

    def kernel(self, dur_us: int, stream: int = 7) -> str:
        """Return a kernel of the last host event, when its stream is free."""
        start = max(self.host_us + 5, self.free_us.get(stream, 0) + 1)
        self.free_us[stream] = start + dur_us
        return (
            f'{{"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":{stream},"ts":{start},'
            f'"dur":{dur_us},"args":{{"correlation":{self.ids},"device":0,"stream":{stream}}}}}'
        )

    def launch(self, dur_us: int = 9, *, stream: int = 7, tid: int = 1) -> Iterator[str]:
        """Yield a launch and its kernel: two events."""
        yield self.host("cuda_runtime", "cudaLaunchKernel", 4, tid)
        yield self.kernel(dur_us, stream)

    def sync(self, call: str = "cudaStreamSynchronize", stream: int = 7) -> str:
        """Return a call that waits for a stream."""
        return self.host("cuda_runtime", call, max(3, self.free_us[stream] + 2 - self.host_us))


def launches(n: int) -> Iterator[str]:
    """Operators that each launch a kernel, in one step."""
    made = Recording()
    yield made.host("user_annotation", "ProfilerStep#0", 13 * (n // 3), ts_us=0)
    for _ in range(n // 3):
        yield made.host("cpu_op", "aten::add", 12, ts_us=made.host_us)
        yield from made.launch()
        made.host_us += 9


def syncs(n: int) -> Iterator[str]:
    """Yield a wait after every kernel."""
    made = Recording()
    for _ in range(n // 3):
        yield from made.launch()
        yield made.sync()


def streams(n: int) -> Iterator[str]:
    """Kernels on many streams that wait for events of each other, and a wait for each."""
    made = Recording()
    for number in range(n // 4):
        stream = 7 + number % N_STREAMS
        yield made.host("cuda_runtime", "cudaStreamWaitEvent", 2)
        yield from made.launch(stream=stream)
        yield made.sync("cudaEventSynchronize", stream)


def device_syncs(n: int) -> Iterator[str]:
    """Kernels on many streams, and a wait for the device after every one."""
    made = Recording()
    for number in range(n // 3):
        yield from made.launch(stream=7 + number % N_STREAMS)
        latest = max(made.free_us.values())
        yield made.host("cuda_runtime", "cudaDeviceSynchronize", max(3, latest + 2 - made.host_us))


def graphs(n: int) -> Iterator[str]:
    """Launches of graphs with very many kernels."""
    made = Recording()
    for _ in range(max(1, n // GRAPH_KERNELS)):
        yield made.host("cuda_runtime", "cudaGraphLaunch", 20)
        for _ in range(min(n, GRAPH_KERNELS)):
            yield made.kernel(3)
        yield made.sync()


def threads(n: int) -> Iterator[str]:
    """Many threads that launch work in turn."""
    made = Recording()
    for number in range(n // 3):
        tid = 1 + number // 50 % N_THREADS
        yield made.host("cpu_op", "aten::add", 6, tid, ts_us=made.host_us)
        yield from made.launch(3, tid=tid)
        made.host_us += 3


def steps(n: int) -> Iterator[str]:
    """Very many steps, each with a batch from a worker process and a wait."""
    made = Recording()
    for number in range(n // (2 * STEP_KERNELS + 3)):
        began = made.host_us
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        yield made.host("user_annotation", name, 2000)
        for _ in range(STEP_KERNELS):
            yield from made.launch()
        yield made.sync()
        dur = made.host_us - began
        yield made.host("user_annotation", f"ProfilerStep#{number}", dur, ts_us=began)


def handovers(n: int) -> Iterator[str]:
    """Very many backward passes on a thread of their own."""
    made = Recording()
    for _ in range(n // 8):
        yield from made.launch()
        yield made.host("cpu_op", "aten::mul", 4)
        for _ in range(2):
            yield made.host("cpu_op", "aten::mul_backward", 14, 2)
            yield from made.launch(tid=2)


CASES: Final[dict[str, Callable[[int], Iterator[str]]]] = {
    relation.__name__: relation
    for relation in (launches, syncs, streams, device_syncs, graphs, threads, steps, handovers)
}


def write(path: Path, events: Iterator[str]) -> None:
    """Write a trace."""
    with path.open("w") as file:
        file.write('{"schemaVersion":1,"traceEvents":[')
        file.write(next(events))
        for event in events:
            file.write(",\n" + event)
        file.write("]}")


def once(path: Path) -> list[float]:
    """Measure in a process: events; seconds of load, build, replay, critical path; bytes."""
    command = [sys.executable, "-c", _PROCESS, str(path)]
    run = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    figures: list[float] = json.loads(run.stdout)
    return figures


def measured(case: str, n: int) -> list[float]:
    """Return the better of two runs, by total time."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{case}.json")
        write(path, CASES[case](n))
        return min((once(path) for _ in range(ROUNDS)), key=lambda run: sum(run[2:5]))


def main() -> None:
    """Measure every case with all events, and with a quarter of them."""
    parser = argparse.ArgumentParser(description="Measure the replay of recordings.")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--case", choices=CASES)
    options = parser.parse_args()

    print(
        f"{'case':<13} {'events':>9} {'read s':>7} {'build':>6} {'replay':>6} {'path':>6} "
        f"{'x read':>6} {'MB':>6} {'growth':>6}"
    )
    worst = slowest = 0.0

    for case in [options.case] if options.case else CASES:
        n, load_s, *parts, n_bytes = measured(case, options.events)
        part = sum(measured(case, options.events // 4)[2:5])
        ratio = sum(parts) / load_s
        worst, slowest = max(worst, ratio), max(slowest, sum(parts) / n * 1e6)
        print(
            f"{case:<13} {n:9,.0f} {load_s:7.2f} "
            + " ".join(f"{seconds:6.2f}" for seconds in parts)
            + f" {ratio:6.2f} {n_bytes / 1e6:6.0f} {sum(parts) / part:6.1f}"
        )

    compared("graph, replay and path in the worst case, of reading", worst, "x", TARGET_RATIO)
    compared("of a million events in the worst case", slowest, "s", TARGET_S)


if __name__ == "__main__":
    main()
