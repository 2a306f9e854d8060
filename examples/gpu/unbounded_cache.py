"""Trains a network that is told where in a text each batch begins.

The fault: the table of places is cached by where the batch begins, without a limit. No batch begins
where another did, so each call is a new entry, and nothing is ever found.

The cure (``--cured``): the cache keeps the last few.

Run: ``python examples/gpu/unbounded_cache.py [--cured] [--steps N] [--device cuda]``
"""

import functools
from collections.abc import Sequence

import measured
import torch
from torch import Tensor, nn

FEW = 4
TOLD = 128
"""Rows that are told their place."""


def places(start: int, rows: int, width: int, device: str) -> Tensor:
    """The places of rows, as waves of ever longer length."""
    where = torch.arange(start, start + rows, device=device).unsqueeze(1)
    waves = torch.arange(1, width + 1, device=device)
    return torch.sin(where / waves)  # fault: the cache keeps it


def main(arguments: Sequence[str] | None = None) -> float:
    """Train; the last loss."""
    options = measured.options(__doc__, steps=200, arguments=arguments)
    network = measured.network(options)
    x, y = measured.batch(options)
    table = functools.lru_cache(maxsize=FEW if options.cured else None)(places)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    for step in measured.steps(options):
        here = x.clone()
        here[:TOLD] += table(step * len(x), len(x[:TOLD]), x.shape[1], options.device)
        loss = nn.functional.cross_entropy(network(here), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
