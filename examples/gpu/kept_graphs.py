"""Trains a network, and keeps the loss of each step.

The fault: the list keeps losses as tensors. Each holds the graph that it came from: ``backward()``
has let go of what the graph had saved, its nodes stay, and memory grows with every step.

The cure (``--cured``): ``.detach()``. The numbers are read together, in the end.

Run: ``python examples/gpu/kept_graphs.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import Tensor, nn


def main(arguments: Sequence[str] | None = None) -> float:
    """Train; the mean loss."""
    options = measured.options(__doc__, steps=200, arguments=arguments)
    network = measured.network(options)
    x, y = measured.batch(options)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    losses: list[Tensor] = []
    for _ in measured.steps(options):
        loss = nn.functional.cross_entropy(network(x), y)  # fault: the list below keeps its graph
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach() if options.cured else loss)
    return measured.told("mean loss", torch.stack(losses).detach().mean())


if __name__ == "__main__":
    main()
