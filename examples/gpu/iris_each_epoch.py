"""Trains a small network on the iris flowers, the full batch in each epoch, and draws its curve.

The problem: ``loss.item()`` in each epoch, for the curve. ``examples/iris_item_each_epoch.py`` is
the program as in tutorials; here its epochs are timed.

The fix (``--cured``): every 200th loss is stored, which draws the same curve. ``--keep-every 0``
stores none. The network is still too small for a GPU: all versions are bound by launch latency.

Run: ``python examples/gpu/iris_each_epoch.py [--cured] [--keep-every N] [--steps N]``
"""

import argparse
from collections.abc import Sequence

import measured
import numpy as np
import torch
from sklearn.datasets import load_iris
from torch import nn

SELDOM = 200
HELD_OUT = 5
"""One flower in so many is not learned from."""


def own(parser: argparse.ArgumentParser) -> None:
    """Add this program's own arguments."""
    parser.add_argument("--keep-every", type=int, metavar="N", help="keep one loss in N; 0: none")


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=2000, arguments=arguments, more=own)
    keep_every = options.keep_every
    if keep_every is None:
        keep_every = SELDOM if options.cured else 1
    measures, kinds = load_iris(return_X_y=True)
    learned = np.arange(len(kinds)) % HELD_OUT > 0
    x = torch.tensor(measures[learned], dtype=torch.float32, device=options.device)
    y = torch.tensor(kinds[learned], dtype=torch.long, device=options.device)
    network = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 3)).to(options.device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    curve: list[float] = []
    loss = torch.zeros(())
    for epoch in measured.steps(options):
        loss = nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if keep_every and epoch % keep_every == 0:
            curve.append(loss.item())  # fault: the host waits for the device in every epoch
    print(f"{len(curve)} points in the curve")
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
