"""Trains a network that gets the position of each batch in a text.

The problem: the table of positions is cached by the start of the batch, without a limit. No two
batches start at the same place, so each call is a new entry, and no entry is used again.

The fix (``--cured``): the cache stores the last few entries.

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
    """Return the positions of rows, as waves of increasing length."""
    where = torch.arange(start, start + rows, device=device).unsqueeze(1)
    waves = torch.arange(1, width + 1, device=device)
    return torch.sin(where / waves)  # fault: the cache retains it


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=200, arguments=arguments)
    network = measured.network(options)
    x, y = measured.batch(options)
    table = functools.lru_cache(maxsize=FEW if options.cured else None)(places)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    for step in measured.steps(options):
        entry = x.clone()
        entry[:TOLD] += table(step * len(x), len(x[:TOLD]), x.shape[1], options.device)
        loss = nn.functional.cross_entropy(network(entry), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
