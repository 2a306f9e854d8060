"""Trains on batches in host memory.

The problem: the batches are in pageable memory. The driver copies them to the device through a
staging buffer, and the host waits until the last part is copied.

The fix (``--cured``): the batches are pinned once, and copied with ``non_blocking=True``.

Run: ``python examples/gpu/pageable_copies.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import nn

BATCHES = 4


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=150, arguments=arguments)
    network = measured.network(options)
    _, y = measured.batch(options)
    width = measured.scaled(options, measured.WIDTH)
    batches = [torch.randn(len(y), width) for _ in range(BATCHES)]
    if options.cured and measured.on_cuda(options):
        batches = [batch.pin_memory() for batch in batches]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    for step in measured.steps(options):
        batch = batches[step % BATCHES]
        x = batch.to(options.device, non_blocking=options.cured)  # fault: from pageable memory
        loss = nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
