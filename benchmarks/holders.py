"""The cost of a leak inspection: holders, graphs, garbage, host objects.

A program with 100,000 and then a million objects beside torch's own is inspected. Each figure is
the minimum of three, in milliseconds of CPU time, and per live object.

Run it with ``python benchmarks/holders.py``.
"""

import gc
import time
from collections.abc import Callable

import torch

from benchmarks.figures import compared
from profkit.capture.memory.holders import autograd_graphs, garbage, holder_chains
from profkit.capture.memory.monitor import host_objects

ROUNDS = 3
SIZES = (100_000, 1_000_000)
NODES = 100_000
TARGET_US = 0.3
"""Target for the search for a holder, in microseconds per live object."""


class Node:
    """Five objects that refer to each other as a program's do."""

    def __init__(self, number: int) -> None:
        self.fields = {"pair": [number, number + 1], "name": str(number)}
        self.parts = (number, [number])


class Trainer:
    """Stores its losses."""

    def __init__(self) -> None:
        self.losses = [torch.zeros(3) for _ in range(200)]


def min_ms(work: Callable[[], object]) -> float:
    """Return the minimum of some rounds."""
    lengths = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        lengths.append(time.process_time() - began)
    return min(lengths) * 1e3


def shown(name: str, work: Callable[[], object], n_objects: int) -> float:
    """Time some work and print it; microseconds per object."""
    length = min_ms(work)
    us_per_object = length * 1e3 / n_objects
    print(f"  {name:<28} {length:8.1f} ms   {us_per_object:6.3f} us per object")
    return us_per_object


def main() -> None:
    """Print the figures."""
    trainer = Trainer()
    program: list[Node] = []

    for size in SIZES:
        program += [Node(n) for n in range(size // 5 - len(program))]
        n_objects = len(gc.get_objects())
        print(f"{n_objects:,} objects")
        us_per_object = shown(
            "holders of 1 tensor", lambda: holder_chains.find_chains(trainer.losses[5:6]), n_objects
        )
        shown(
            "holders of 20 tensors",
            lambda: holder_chains.find_chains(trainer.losses[5:25]),
            n_objects,
        )
        shown("garbage", garbage.find_garbage, n_objects)
        shown("host objects", host_objects.scan_host_objects, n_objects)
        name = f"holder of a tensor among {n_objects / 1e6:.1f} million objects, per object"
        compared(name, us_per_object, "µs", TARGET_US)
    weight = torch.zeros(3, requires_grad=True)
    parts = []
    for _ in range(NODES // 100):
        part = weight
        for _ in range(50):
            part = (part * 2.0).tanh()
        parts.append(part)

    total = torch.stack(parts).sum()
    print(f"a graph of {NODES:,} nodes")
    length = min_ms(lambda: autograd_graphs.measure_graph([total], counted=set()))
    print(f"  {'nodes and bytes':<28} {length:8.1f} ms   {length * 1e3 / NODES:6.3f} us per node")


if __name__ == "__main__":
    main()
