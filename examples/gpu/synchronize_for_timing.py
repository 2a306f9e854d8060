"""Trains a network, and measures the time of the parts of each step.

The problem: each time is taken after ``torch.cuda.synchronize()``. The device is then idle until
the host has launched the next part: the measurement itself slows down the program.

The fix (``--cured``): CUDA events on the device's stream, which are read once, at the end.

Run: ``python examples/gpu/synchronize_for_timing.py [--cured] [--steps N] [--device cuda]``
"""

import itertools
import time
from collections.abc import Callable, Sequence

import measured
import torch
from torch import nn


def by_the_host() -> Callable[[], float]:
    """Take the host's time when the device has finished."""
    torch.cuda.synchronize()  # fault: the device becomes idle
    now = time.perf_counter()
    return lambda: now * 1000


def on_the_stream() -> Callable[[], float]:
    """Record an event on the device's stream."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return lambda: BEGAN[0].elapsed_time(event)


def without_a_device() -> Callable[[], float]:
    """Take the time on a CPU, where nothing is asynchronous."""
    now = time.perf_counter()
    return lambda: now * 1000


BEGAN: list[torch.cuda.Event] = []
"""The event that all others are compared with."""


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=300, arguments=arguments)
    network = measured.network(options)
    x, y = measured.batch(options)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
    take = without_a_device
    if measured.on_cuda(options):
        take = on_the_stream if options.cured else by_the_host
        BEGAN[:] = [torch.cuda.Event(enable_timing=True)]
        BEGAN[0].record()
    times: list[list[Callable[[], float]]] = []
    loss = torch.zeros(())
    for _ in measured.steps(options):
        taken = [take()]
        loss = nn.functional.cross_entropy(network(x), y)
        taken.append(take())
        optimizer.zero_grad()
        loss.backward()
        taken.append(take())
        optimizer.step()
        times.append([*taken, take()])
    measured.wait(options)
    last = [when() for when in times[-1]]
    parts = [after - before for before, after in itertools.pairwise(last)]
    print("last forward, backward, update: {:.3f}, {:.3f}, {:.3f} ms".format(*parts))
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
