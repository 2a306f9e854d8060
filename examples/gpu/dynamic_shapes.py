"""Trains on texts sorted by length, each batch padded to its longest text.

The problem: every batch is longer than all before it. No cached block is large enough for its
activations, so PyTorch allocates from the driver in every step.

The fix (``--cured``): all batches are padded to one length, and the padding is excluded from the
loss. A few lengths would do, too, or the longest batch first.

Run: ``python examples/gpu/dynamic_shapes.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import nn

BATCH = 8
WIDTH = 1024
SHORTEST = 512
LONGER = 64
"""Rows that each text has more: 2 MiB of a batch, the unit of large segments."""


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=20, arguments=arguments)
    network = measured.network(options, layers=3, width=WIDTH)
    shortest, width = measured.scaled(options, SHORTEST), measured.scaled(options, WIDTH)
    longer = measured.scaled(options, LONGER)
    longest = shortest + longer * measured.count(options)
    texts = torch.randn(longest, BATCH, width, device=options.device)
    kinds = torch.randint(measured.KINDS, (longest, BATCH), device=options.device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    for step in measured.steps(options):
        length = shortest + longer * step
        x = texts[:length]
        if options.cured:
            x = nn.functional.pad(x, (0, 0, 0, 0, 0, longest - length))
        scores = network(x)[:length]  # fault: a new length in every step
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), kinds[:length].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
