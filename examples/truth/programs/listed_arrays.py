"""Trains a network on batches that are lists of arrays of NumPy.

The problem: ``torch.tensor`` of a list of arrays converts one number after the other.

The fix (``--cured``): ``np.stack`` makes one array of them first.

Run: ``python examples/truth/programs/listed_arrays.py [--cured]``
"""

import argparse
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

SEED, STEPS = 7, 40
WIDTH, BATCH = 512, 128


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return the step of training."""
    torch.manual_seed(SEED)
    network = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    chance = np.random.default_rng(SEED)
    rows = [chance.normal(size=WIDTH).astype(np.float32) for _ in range(BATCH)]
    y = torch.randn(BATCH, 1)

    def step() -> None:
        x = torch.from_numpy(np.stack(rows)) if cured else torch.tensor(rows)  # fault: by number
        optimizer.zero_grad()
        nn.functional.mse_loss(network(x), y).backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on lists of arrays.")
    parser.add_argument("--cured", action="store_true")
    train = prepare(cured=parser.parse_args().cured)
    for _ in range(STEPS):
        train()
