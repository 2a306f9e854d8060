"""Trains a network of many layers with AdamW.

The problem: ``foreach=False``. The optimizer updates one parameter after the other, with a dozen
small kernels each, and the device waits for their launches.

The fix (``--cured``): ``fused=True`` updates many parameters in one kernel.

Run: ``python examples/gpu/unfused_optimizer.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import nn

LAYERS = 32
WIDTH = 1024


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=120, arguments=arguments)
    network = measured.network(options, layers=LAYERS, width=WIDTH)
    x, y = measured.batch(options, width=WIDTH)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, foreach=False, fused=options.cured)
    loss = torch.zeros(())
    for _ in measured.steps(options):
        loss = nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # fault: a dozen kernels per parameter
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
