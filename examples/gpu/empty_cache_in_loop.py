"""Trains a network, and empties the cache after each step.

The problem: ``torch.cuda.empty_cache()`` returns all free memory to the driver, and the next step
allocates it again: slow driver calls, some of which synchronize with the device.

The fix (``--cured``): remove it. Cached memory is free for every later tensor.

Run: ``python examples/gpu/empty_cache_in_loop.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import nn


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
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
            torch.cuda.empty_cache()  # fault: the next step allocates all of it again
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
