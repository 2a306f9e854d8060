"""Trains a network on rows of which some have no label.

The problem: ``scores[known]`` selects rows. Their number is known on the device only, so the host
waits for it.

The fix (``--cured``): all rows are used, and those without a label have weight zero.

Run: ``python examples/gpu/boolean_mask.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import Tensor, nn


def picked(scores: Tensor, y: Tensor, known: Tensor) -> Tensor:
    """Return the mean loss of the selected rows."""
    return nn.functional.cross_entropy(scores[known], y[known])  # fault: the host waits for a size


def weighed(scores: Tensor, y: Tensor, known: Tensor) -> Tensor:
    """Return the mean loss of the labelled rows, computed on all rows."""
    losses = nn.functional.cross_entropy(scores, y, reduction="none")
    return torch.where(known, losses, 0.0).sum() / known.sum()


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=300, arguments=arguments)
    network = measured.network(options)
    x, y = measured.batch(options)
    is_labelled = torch.arange(len(y), device=options.device) % 3 > 0
    loss_of = weighed if options.cured else picked
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in measured.steps(options):
        loss = loss_of(network(x), y, is_labelled)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
