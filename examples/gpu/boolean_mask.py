"""Trains a network on rows of which some have no label.

The fault: ``scores[known]`` picks the rows out. How many there are is only known on the device, so
the host waits for it before it can go on.

The cure (``--cured``): all rows keep their place, and those without a label count nothing.

Run: ``python examples/gpu/boolean_mask.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import Tensor, nn


def picked(scores: Tensor, y: Tensor, known: Tensor) -> Tensor:
    """The mean loss of the rows that are picked out."""
    return nn.functional.cross_entropy(scores[known], y[known])  # fault: the host waits for a size


def weighed(scores: Tensor, y: Tensor, known: Tensor) -> Tensor:
    """The same, of rows in their places."""
    each = nn.functional.cross_entropy(scores, y, reduction="none")
    return torch.where(known, each, 0.0).sum() / known.sum()


def main(arguments: Sequence[str] | None = None) -> float:
    """Train; the last loss."""
    options = measured.options(__doc__, steps=300, arguments=arguments)
    network = measured.network(options)
    x, y = measured.batch(options)
    known = torch.arange(len(y), device=options.device) % 3 > 0
    loss_of = weighed if options.cured else picked
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in measured.steps(options):
        loss = loss_of(network(x), y, known)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
