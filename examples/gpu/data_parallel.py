"""Trains a network on one GPU, wrapped as if there were several.

The fault: ``nn.DataParallel``. On one device it goes through parameters and inputs in every call,
for nothing. On several it copies the network to each device in every step and runs them from one
process, whose threads wait for each other.

The cure (``--cured``): the network itself. On several devices it is ``DistributedDataParallel``.

Run: ``python examples/gpu/data_parallel.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import nn


def main(arguments: Sequence[str] | None = None) -> float:
    """Train; the last loss."""
    options = measured.options(__doc__, steps=150, arguments=arguments)
    network = measured.network(options)
    model = network if options.cured else nn.DataParallel(network)
    x, y = measured.batch(options)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in measured.steps(options):
        loss = nn.functional.cross_entropy(model(x), y)  # fault: by way of DataParallel
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
