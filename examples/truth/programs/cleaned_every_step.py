"""Trains a network beside many objects that stay.

The problem: ``gc.collect()`` in every step visits all of them.

The fix (``--cured``): Python collects by itself, after so many new objects.

Run: ``python examples/truth/programs/cleaned_every_step.py [--cured]``
"""

import argparse
import gc
from collections.abc import Callable

import torch
from torch import nn

SEED, STEPS = 7, 40
OBJECTS, WIDTH, BATCH = 200_000, 512, 128


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return the step of training."""
    torch.manual_seed(SEED)
    vocabulary = [[number] for number in range(OBJECTS)]
    network = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    x, y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, 1)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(network(x), y).backward()
        optimizer.step()
        if not cured and vocabulary:
            gc.collect()  # fault: visits all objects

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train, collecting garbage.")
    parser.add_argument("--cured", action="store_true")
    train = prepare(cured=parser.parse_args().cured)
    for _ in range(STEPS):
        train()
