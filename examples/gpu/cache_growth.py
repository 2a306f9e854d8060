"""Trains on batches of increasing length, from a data set sorted by length.

The problem: each batch is slightly longer than all before it, so no cached block is large enough
for its activations. PyTorch allocates from the driver in every step, and reserves many times the
allocated memory.

The fix (``--cured``): batches are padded to one length, and the padding is excluded from the loss.
If padding costs too much, put the longest batch first, or set ``expandable_segments:True``.

Run: ``python examples/gpu/cache_growth.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import nn

WIDTH = 1024
SHORTEST = 4096
LONGER = 512
"""Rows that each batch has more than the one before: 2 MiB, the unit of large segments."""


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=20, arguments=arguments)
    shortest, longer = measured.scaled(options, SHORTEST), measured.scaled(options, LONGER)
    longest = shortest + longer * measured.count(options)
    network = measured.network(options, layers=3, width=WIDTH)
    width = measured.scaled(options, WIDTH)
    texts = torch.randn(longest, width, device=options.device)
    kinds = torch.randint(measured.KINDS, (longest,), device=options.device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    for step in measured.steps(options):
        length = shortest + longer * step
        x = torch.zeros(longest if options.cured else length, width, device=options.device)
        x[:length] = texts[:length]
        scores = network(x)[:length]  # fault: a new length in every step
        loss = nn.functional.cross_entropy(scores, kinds[:length])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
