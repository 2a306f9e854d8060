"""Trains a network on a table of NumPy.

The problem: NumPy's arrays are in float64, and the model is converted to fit them.

The fix (``--cured``): the table is converted to float32, in which the model is.

Run: ``python examples/host/table_in_float64.py [--cured]``
"""

import argparse
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

SEED, STEPS = 7, 20
ROWS, COLUMNS, WIDTH, BATCH = 2048, 64, 256, 128


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return the step of training."""
    torch.manual_seed(SEED)
    table = np.random.default_rng(SEED).normal(size=(ROWS, COLUMNS))
    features = torch.from_numpy(table)
    hidden = (nn.Linear(COLUMNS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
    network = nn.Sequential(*hidden, nn.Linear(WIDTH, 1))
    if cured:
        features = features.float()
    else:
        network.double()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    def step() -> None:
        batch = features[torch.randint(ROWS, (BATCH,))]
        loss = (network(batch) - batch[:, :1]).square().mean()  # fault: in float64
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a network on a table.")
    parser.add_argument("--cured", action="store_true")
    train = prepare(cured=parser.parse_args().cured)
    for _ in range(STEPS):
        train()
