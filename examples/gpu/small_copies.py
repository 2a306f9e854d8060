"""Trains on batches of many small tables of features.

The problem: each of 200 features is a tensor of its own, and is copied to the device alone. All of
them are pinned and copied with ``non_blocking=True``, so nothing waits, but the host launches 200
copies per step.

The fix (``--cured``): the features of a batch are one pinned tensor, which is split on the device.

Run: ``python examples/gpu/small_copies.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import nn

FEATURES = 200
ROWS = 256
SIZE = 4


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=300, arguments=arguments)
    n_features = measured.scaled(options, FEATURES)
    network = nn.Linear(n_features * SIZE, measured.KINDS).to(options.device)
    y = torch.randint(measured.KINDS, (ROWS,), device=options.device)
    joined = torch.randn(n_features, ROWS, SIZE)
    if measured.on_cuda(options):
        joined = joined.pin_memory()
    parts = [joined] if options.cured else [row[None] for row in joined]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in measured.steps(options):
        copied = [part.to(options.device, non_blocking=True) for part in parts]  # fault: one by one
        x = torch.cat(copied).transpose(0, 1).flatten(1)
        loss = nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
