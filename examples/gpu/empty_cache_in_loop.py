"""Trains a network, and tidies up after each step.

The fault: ``torch.cuda.empty_cache()`` gives all free memory back to the driver, and the next step
asks for it again: calls of the driver that take long, some of which wait for the device.

The cure (``--cured``): without it. What PyTorch caches is free for every next tensor.

Run: ``python examples/gpu/empty_cache_in_loop.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import nn


def main(arguments: Sequence[str] | None = None) -> float:
    """Train; the last loss."""
    options = measured.options(__doc__, steps=60, arguments=arguments)
    network = measured.network(options)
    x, y = measured.batch(options)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in measured.steps(options):
        loss = nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not options.cured:
            torch.cuda.empty_cache()  # fault: the next step asks for all of it again
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
