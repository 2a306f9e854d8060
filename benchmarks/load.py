"""Time and memory of loading a trace: profkit against whole-file decoders, as ratios from one run.

A recorded trace is repeated, with its times shifted, until its text has the given size. Each reader
loads it in a process of its own, whose wall time and memory (with children) are measured; the
better of two runs is used. The other readers run without the garbage collector, which is fastest,
and one of them decodes the same typed events as profkit. Nothing is downloaded, and the files are
removed.

Run: ``python benchmarks/load.py [--mb 200] [--trace FILE]``
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil
from isal import igzip

from benchmarks.figures import compared

# Each round reads the file; benchmarks/cache.py measures the cache.
os.environ.setdefault("PROFKIT_CACHE", "0")

ROOT: Final = Path(__file__).parents[1]
TRACES: Final = ROOT / "traces"
ROUNDS: Final = 2
TARGET_TIME: Final = 1.5
TARGET_MEMORY: Final = 0.6
TYPED: Final = "msgspec, typed"
READERS: Final = {
    "profkit": "from profkit.readers.open import load; kept = load(path)",
    "json": "import json; kept = json.loads(text())",
    "orjson": "import orjson; kept = orjson.loads(text())",
    "msgspec": "import msgspec; kept = msgspec.json.decode(text())",
    TYPED: (
        "import msgspec; from profkit.readers.kineto.schema import EVENTS; "
        "File = msgspec.defstruct('File', [('traceEvents', list[EVENTS[False, False]])]); "
        "kept = msgspec.json.decode(text(), type=File, strict=False)"
    ),
}
"""The readers as statements; the last statement of each is timed."""
_PROCESS: Final = """
import gc, sys, time

path, statement = sys.argv[1:]
def text():
    if path.endswith(".gz"):
        from isal import igzip
        with igzip.open(path) as file:
            return file.read()
    with open(path, "rb") as file:
        return file.read()
imports, _, work = statement.rpartition("; ")
exec(imports)
if not imports.endswith("import load"):
    gc.disable()
print("ready", flush=True)
sys.stdin.readline()
begin = time.perf_counter()
exec(work)
print(time.perf_counter() - begin, flush=True)
sys.stdin.readline()
"""
SAMPLE_S: Final = 0.01
IDS: Final = ("External id", "correlation", "Python id", "Python parent id", "Sequence number")
ID_STRIDE: Final = 10_000_000
"""More ids than a recorded trace has."""


def read_source(path: Path | None) -> bytes:
    """Read the text of a trace to repeat, by default of the largest recorded one."""
    path = path or max(TRACES.glob("*/*.pt.trace.json.gz"), key=lambda trace: trace.stat().st_size)
    content = path.read_bytes()
    return igzip.decompress(content) if path.suffix == ".gz" else content


class MemoryMonitor(threading.Thread):
    """Samples the memory of a process and its children, with shared pages counted once.

    Args:
        pid: The process.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.process = psutil.Process(pid)
        self.over = threading.Event()
        self.base_bytes = self.current_bytes()
        self.peak_bytes = self.base_bytes

    def current_bytes(self) -> int:
        """Current memory: proportional set size where the system reports it, else resident."""
        total = 0
        every = [self.process]
        with contextlib.suppress(psutil.Error):
            every += self.process.children(recursive=True)
        for process in every:
            with contextlib.suppress(psutil.Error):
                memory = process.memory_full_info()
                total += int(getattr(memory, "pss", memory.rss))
        return total

    def run(self) -> None:
        """Sample until the event ``over`` is set."""
        while not self.over.wait(SAMPLE_S):
            self.peak_bytes = max(self.peak_bytes, self.current_bytes())


def repeat_events(trace: bytes, n_bytes: int, vary: random.Random | None = None) -> Iterator[bytes]:
    """Yield a trace's text with its events repeated, in pieces, until it has a given size.

    In each repetition the events are later and have new ids.

    Args:
        trace: The text of a trace.
        n_bytes: The size to reach.
        vary: Scales every interval between two times randomly, differently in each repetition:
            nesting is preserved, and repetitions compress as badly as real traces.
    """
    start = re.search(rb'"traceEvents"\s*:\s*\[', trace)
    if start is None:
        raise SystemExit("The trace has no traceEvents.")
    events = json.JSONDecoder().raw_decode(trace[start.end() - 1 :].decode())[0]
    times = [event["ts"] for event in events if event.get("ph") == "X"]
    span_us = max(times) - min(times) + 1000.0
    document = json.loads(trace)
    del document["traceEvents"]
    head = json.dumps(document)[:-1].encode() + b', "traceEvents": ['
    yield head
    written, turn = len(head), 0

    while written < n_bytes:
        again = events if vary is None else _rescale_intervals(events, vary)
        moved = (_moved(event, turn, turn * span_us) for event in again)
        piece = ",\n".join(json.dumps(event, indent=1) for event in moved).encode()
        piece = (b",\n" if turn else b"") + piece
        yield piece
        written += len(piece)
        turn += 1

    yield b"]}"


def _rescale_intervals(events: list[dict[str, Any]], vary: random.Random) -> list[dict[str, Any]]:
    """Return the events with randomly scaled intervals, ending no later than before."""
    timed = [event for event in events if "ts" in event]
    ends = [event["ts"] + event.get("dur", 0) for event in timed]
    moments = sorted({event["ts"] for event in timed} | set(ends))
    changed = {moments[0]: moments[0]}
    for before, moment in itertools.pairwise(moments):
        changed[moment] = changed[before] + (moment - before) * vary.uniform(0.4, 1.0)
    again = []

    for event in events:
        if "ts" not in event:
            again.append(event)
            continue
        start = changed[event["ts"]]
        later = {"ts": start}
        if "dur" in event:
            later["dur"] = round(changed[event["ts"] + event["dur"]] - start, 3)
        again.append({**event, **later})

    return again


def _moved(event: dict[str, Any], turn: int, shift_us: float) -> dict[str, Any]:
    """Return an event in a later repetition."""
    moved = dict(event)
    if "ts" in moved:
        moved["ts"] = round(moved["ts"] + shift_us, 3)
    args = moved.get("args")
    if turn and isinstance(args, dict):
        ids = {key: args[key] + turn * ID_STRIDE for key in IDS if isinstance(args.get(key), int)}
        moved["args"] = {**args, **ids}
    return moved


def load_once(path: Path, statement: str) -> tuple[float, int]:
    """Load a file in a process of its own: wall time in seconds, growth of memory in bytes."""
    command = [sys.executable, "-c", _PROCESS, str(path), statement]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as reader:
        if reader.stdin is None or reader.stdout is None or not reader.stdout.readline():
            raise SystemExit(f"The reader did not start: {statement}")
        monitor = MemoryMonitor(reader.pid)
        monitor.start()
        reader.stdin.write("go\n")
        seconds = float(reader.stdout.readline())
        monitor.over.set()
        monitor.join()
        monitor.peak_bytes = max(monitor.peak_bytes, monitor.current_bytes())
        reader.stdin.write("done\n")

    return seconds, monitor.peak_bytes - monitor.base_bytes


def measured(path: Path, statement: str) -> tuple[float, int]:
    """Return the minimum of wall time in seconds and growth of memory in bytes, over all rounds."""
    runs = [load_once(path, statement) for _ in range(ROUNDS)]
    return min(run[0] for run in runs), min(run[1] for run in runs)


def compare(path: Path, n_bytes: int, readers: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Print a table of all readers; return their seconds and memory per byte of text."""
    print(f"\n{path.name}: {n_bytes / 1e6:.0f} MB of text")
    print(f"{'reader':<14} {'seconds':>8} {'x typed':>10} {'MB':>7} {'x text':>7}")
    figures = {name: measured(path, READERS[name]) for name in readers}
    base_s = figures[TYPED][0]
    for name, (seconds, memory) in figures.items():
        ratio, share = seconds / base_s, memory / n_bytes
        print(f"{name:<14} {seconds:8.2f} {ratio:10.2f} {memory / 1e6:7.0f} {share:7.2f}")
    return {name: (seconds, memory / n_bytes) for name, (seconds, memory) in figures.items()}


def main() -> None:
    """Create the file plain and gzipped, and compare all readers on the plain one, two on both."""
    parser = argparse.ArgumentParser(description="Compare loading with whole-file decoders.")
    parser.add_argument("--mb", type=int, default=200, help="megabytes of text")
    parser.add_argument("--trace", type=Path, help="the trace to repeat")
    options = parser.parse_args()

    trace = read_source(options.trace)

    with tempfile.TemporaryDirectory() as folder:
        plain, packed = Path(folder, "repeated.json"), Path(folder, "repeated.json.gz")
        with plain.open("wb") as file, igzip.open(packed, "wb") as zipped:
            for piece in repeat_events(trace, options.mb * 1_000_000):
                file.write(piece)
                zipped.write(piece)
        n_bytes = plain.stat().st_size
        for path, readers in ((plain, tuple(READERS)), (packed, ("profkit", TYPED))):
            figures = compare(path, n_bytes, readers)
            seconds, share = figures["profkit"]
            ratio = seconds / figures[TYPED][0]
            compared(f"{path.suffix}: time, of a typed decode by msgspec", ratio, "x", TARGET_TIME)
            compared(f"{path.suffix}: memory, of the text", share, "x", TARGET_MEMORY)


if __name__ == "__main__":
    main()
