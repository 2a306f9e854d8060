"""Trains a network on one GPU, wrapped as if there were several.

The problem: ``nn.DataParallel``. On one device it only adds host work to every call. On several,
it copies the network to each device in every step and runs them from the threads of one process.

The fix (``--cured``): the network without it; on several devices, ``DistributedDataParallel``.

Run: ``python examples/gpu/data_parallel.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import nn


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=150, arguments=arguments)
    network = measured.network(options)
    model = network if options.cured else nn.DataParallel(network)
    x, y = measured.batch(options)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in measured.steps(options):
        loss = nn.functional.cross_entropy(model(x), y)  # fault: calls DataParallel
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
