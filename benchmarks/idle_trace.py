"""What ``profkit.trace`` costs when it records nothing: switched off, exhausted, without a device.

Each figure is entry and exit of one ``with profkit.trace("step"):`` block, the making of the
object included, in nanoseconds: the quickest of several runs, less the loop's own cost.

Run it with ``python benchmarks/idle_trace.py``.
"""

import os
import subprocess
import sys
import tempfile
import timeit

LOOPS = 200_000
RUNS = 7
AIM_NS = 1000


def cost_ns(statement: str, setup: str, names: dict[str, object] | None = None) -> float:
    """The cost of a statement in nanoseconds, less that of ``pass``."""
    timer = timeit.Timer(statement, setup, globals=names)
    empty = timeit.Timer("pass")
    taken = min(timer.repeat(RUNS, LOOPS))
    loop = min(empty.repeat(RUNS, LOOPS))
    return (taken - loop) / LOOPS * 1e9


def switched_off() -> dict[str, float]:
    """Costs with ``PROFKIT=0``; run in a process of its own."""
    figures = {
        "block, switched off": cost_ns("with profkit.trace('step'): pass", "import profkit"),
        "decorated call, switched off": cost_ns(
            "work()", "import profkit\n@profkit.trace\ndef work(): pass"
        ),
    }
    if "torch" in sys.modules:
        raise RuntimeError("a switched-off profkit.trace imported torch")
    return figures


def idle() -> dict[str, float]:
    """Costs of a name that has been recorded as often as it may be, and without a device."""
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
            """Nothing: its entry is what costs."""

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
        subprocess.run([sys.executable, __file__, "off"], env=environment, check=True)
        figures = idle()
    for name, ns in figures.items():
        print(f"{name:<34} {ns:7.0f} ns   ({ns / AIM_NS:.2f} of the aim, {AIM_NS} ns)")


if __name__ == "__main__":
    main()
