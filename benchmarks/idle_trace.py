"""Overhead of ``profkit.trace`` when it does not record: off, limit reached, or without a device.

Each figure is entry and exit of one ``with profkit.trace("step"):`` block with the construction of
the object, in nanoseconds: the minimum of several runs, less the overhead of the loop.

Run ``python benchmarks/idle_trace.py``.
"""

import os
import subprocess
import sys
import tempfile
import timeit

from benchmarks.figures import compared

LOOPS = 200_000
RUNS = 7
TARGET_NS = 1000


def cost_ns(statement: str, setup: str, names: dict[str, object] | None = None) -> float:
    """Return the time of a statement in nanoseconds, less that of ``pass``."""
    timer = timeit.Timer(statement, setup, globals=names)
    empty = timeit.Timer("pass")
    taken = min(timer.repeat(RUNS, LOOPS))
    loop = min(empty.repeat(RUNS, LOOPS))
    return (taken - loop) / LOOPS * 1e9


def switched_off() -> dict[str, float]:
    """Times with ``PROFKIT=0``, in a process of its own."""
    figures = {
        "block, switched off": cost_ns("with profkit.trace('step'): pass", "import profkit"),
        "decorated call, switched off": cost_ns(
            "work()", "import profkit\n@profkit.trace\ndef work(): pass"
        ),
    }
    if "torch" in sys.modules:
        raise RuntimeError("a switched-off profkit.trace imported torch")
    return figures


def measure_idle_traces() -> dict[str, float]:
    """Times after the limit of a name is reached, and without a device."""
    import torch

    import profkit

    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            with profkit.trace("step", limit=1, dir=folder, quiet=True):
                torch.zeros(1)
    figures = {
        "block, exhausted": cost_ns("with profkit.trace('step', limit=1): pass", "import profkit")
    }
    if not torch.cuda.is_available():
        with profkit.trace("device", only="cuda"):
            torch.zeros(1)
        figures["block, only CUDA and none there"] = cost_ns(
            "with profkit.trace('device', only='cuda'): pass", "import profkit"
        )
    with tempfile.TemporaryDirectory() as folder:

        @profkit.trace("call", limit=1, dir=folder, quiet=True)
        def work() -> None:
            """Do nothing."""

        for _ in range(2):
            work()
    figures["decorated call, exhausted"] = cost_ns("work()", "pass", {"work": work})
    return figures


def main() -> None:
    """Measure and print."""
    if sys.argv[1:] == ["off"]:
        figures = switched_off()
    else:
        environment = {**os.environ, "PROFKIT": "0"}
        subprocess.run(
            [sys.executable, "-m", "benchmarks.idle_trace", "off"], env=environment, check=True
        )
        figures = measure_idle_traces()
    for name, ns in figures.items():
        compared(name, ns, "ns", TARGET_NS)


if __name__ == "__main__":
    main()
