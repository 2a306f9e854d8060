"""Loads a deep network in float32, casts its weights to bfloat16, and trains a last layer on it.

The problem: the originals stay until all weights are cast, so each bfloat16 weight is allocated
between two originals. When the originals are freed, they leave gaps of the size of one of them,
which are too small for the longer activations.

The fix (``--cured``): each original is freed after its cast. The next one takes its place.

Run: ``python examples/gpu/fragmentation.py [--cured] [--steps N] [--device cuda]``
"""

import argparse
from collections.abc import Sequence

import measured
import torch
from torch import Tensor, nn

WIDTH = 1400
LAYERS = 160
ROWS = 6400


def weights(options: argparse.Namespace, width: int) -> list[Tensor]:
    """Return the network's weights, in bfloat16.

    Args:
        width: Their height and width.
    """
    originals, turned = [], []
    for _ in range(measured.scaled(options, LAYERS, 2)):
        originals.append(torch.empty(width, width, device=options.device).normal_(0, width**-0.5))
        turned.append(originals[-1].bfloat16())  # fault: allocated between two originals
        if options.cured:
            originals.clear()
    return turned


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=20, arguments=arguments)
    width = measured.scaled(options, WIDTH)
    x, y = measured.batch(options, rows=ROWS, width=WIDTH)
    deep = weights(options, width)
    first = nn.Linear(width, width).to(options.device)
    last = nn.Linear(width, measured.KINDS).to(options.device)
    optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.01)
    loss = torch.zeros(())
    for _ in measured.steps(options):
        hidden = first(x).bfloat16()
        for weight in deep:
            hidden = hidden + torch.relu(hidden @ weight) / len(deep)
        loss = nn.functional.cross_entropy(last(hidden.float()), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
