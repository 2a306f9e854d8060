"""Trains a network, and stores the loss of each step.

The problem: the list stores losses as tensors, with their autograd graphs: ``backward()`` frees the
tensors that a graph had saved, but its nodes stay, and memory grows with every step.

The fix (``--cured``): ``.detach()``. The numbers are read together, at the end.

Run: ``python examples/gpu/kept_graphs.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import Tensor, nn


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the mean loss."""
    options = measured.options(__doc__, steps=200, arguments=arguments)
    network = measured.network(options)
    x, y = measured.batch(options)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    losses: list[Tensor] = []
    for _ in measured.steps(options):
        loss = nn.functional.cross_entropy(network(x), y)  # fault: the list below retains its graph
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach() if options.cured else loss)
    return measured.told("mean loss", torch.stack(losses).detach().mean())


if __name__ == "__main__":
    main()
