"""Trains a network and sums its losses.

The problem: ``.item()`` copies each loss to the host, which waits for all enqueued work before it
runs the optimizer: the device is idle meanwhile.

The fix (``--cured``): the losses are summed on the device and read once, at the end.

Run: ``python examples/gpu/item_each_step.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import nn


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the mean loss."""
    options = measured.options(__doc__, steps=300, arguments=arguments)
    network = measured.network(options)
    x, y = measured.batch(options)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
    total: torch.Tensor | float = 0.0
    for _ in measured.steps(options):
        loss = nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        total += loss.detach() if options.cured else loss.item()  # fault: the host waits
        optimizer.step()
    return measured.told("mean loss", total / measured.count(options))


if __name__ == "__main__":
    main()
