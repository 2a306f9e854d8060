"""Trains without PyTorch's caching allocator, as left over from a search for a memory error.

The problem: the driver allocates and frees the memory of every tensor, and each free waits for the
device.

The fix (``--cured``): the caching allocator, which is the default.

Run: ``python examples/gpu/allocator_off.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import nn

LAYERS = 8


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=60, arguments=arguments)
    if measured.on_cuda(options):
        torch.cuda.caching_allocator_enable(options.cured)  # fault: off
    network = measured.network(options, layers=LAYERS)
    x, y = measured.batch(options)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in measured.steps(options):
        loss = nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
