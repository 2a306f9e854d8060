"""Prints, for containers of each kind, measured bytes per entry and those that the process gained.

Each container is made in a fork, whose resident memory grows by what its entries take. That is
independent of any object's own account of its size.
"""

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Sized
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from profkit.capture.memory.monitor.newest_entries import measure_entries
from profkit.readers.process_memory import release_free_memory

TOTAL_BYTES = 24_000_000
"""Of a container: the process gains some hundred kilobytes besides."""
PAGE = os.sysconf("SC_PAGE_SIZE")


class Plain:
    """An instance with a few attributes."""

    def __init__(self, n: int) -> None:
        self.step, self.loss, self.name = n + 1000, n / 7, None


class Slots:
    """An instance with slots."""

    __slots__ = ("loss", "name", "step")

    def __init__(self, n: int) -> None:
        self.step, self.loss, self.name = n + 1000, n / 7, None


@dataclass
class Record:
    """A dataclass."""

    step: int
    loss: float
    tags: list[str]


@dataclass(slots=True)
class SlottedRecord:
    """A dataclass with slots."""

    step: int
    loss: float


MADE: dict[str, Callable[[int], Sized]] = {
    "list of ints": lambda n: [i + 1000 for i in range(n)],
    "list of floats": lambda n: [i / 7 for i in range(n)],
    "list of str": lambda n: [f"sample number {i} of the run" for i in range(n)],
    "list of long str": lambda n: [f"{i}" * 100 for i in range(n)],
    "list of bytes": lambda n: [i.to_bytes(100, "big") for i in range(n)],
    "list of large bytes": lambda n: [i.to_bytes(2000, "big") for i in range(n // 10)],
    "list of dicts": lambda n: [{"step": i + 1000, "loss": i / 7, "name": "a"} for i in range(n)],
    "list of instances": lambda n: [Plain(i) for i in range(n)],
    "list of slots": lambda n: [Slots(i) for i in range(n)],
    "list of dataclasses": lambda n: [Record(i + 1000, i / 7, ["a", "b"]) for i in range(n)],
    "list of slotted dataclasses": lambda n: [SlottedRecord(i + 1000, i / 7) for i in range(n)],
    "list of arrays": lambda n: [np.full(300, i, np.float64) for i in range(n // 10)],
    "list of tuples": lambda n: [(i / 7, i / 9, "a") for i in range(n)],
    "dict of ints": lambda n: {i + 1000: i + 1_000_000 for i in range(n)},
    "dict of lists": lambda n: {f"tag {i}": [i / 7, i / 9] for i in range(n)},
    "set of str": lambda n: {f"sample {i}" for i in range(n)},
    "deque of floats": lambda n: deque(i / 7 for i in range(n)),
    "nested lists": lambda n: [[[i / 7, i + 1000], {"a": (i / 9,)}] for i in range(n)],
    "shared entries": lambda n: [{"model": MADE, "name": "shared", "n": i / 7} for i in range(n)],
}


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE


def measured(make: Callable[[int], Sized]) -> tuple[float, float]:
    """Bytes per entry: measured, and what this process gained."""
    few = make(1_000)
    n = round(TOTAL_BYTES / measure_entries(few, len(few)).mean_bytes * 1_000 / len(few))
    del few
    release_free_memory()  # it would be used without any gain
    before = resident_bytes()
    made = make(n)
    gained = resident_bytes() - before
    return measure_entries(made, len(made)).mean_bytes, gained / len(made)


def main() -> None:
    """Measure each kind in a process of its own."""
    for name, make in MADE.items():
        if os.fork() == 0:
            print(json.dumps([name, *measured(make)]), flush=True)
            os._exit(0)
        os.wait()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
