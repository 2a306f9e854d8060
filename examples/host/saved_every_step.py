"""Trains a small network and saves its weights.

The problem: a checkpoint is written in every step, and the next step waits until it is written.

The fix (``--cured``): one is written every 100 steps.

Run: ``python examples/host/saved_every_step.py [--cured]``
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

SEED, STEPS, EVERY = 7, 200, 100
WIDTH, BATCH = 512, 8


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return the step of training."""
    torch.manual_seed(SEED)
    network = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    x, y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, 1)
    folder = tempfile.TemporaryDirectory()
    n_steps = 0

    def step() -> None:
        nonlocal n_steps
        n_steps += 1
        optimizer.zero_grad()
        nn.functional.mse_loss(network(x), y).backward()
        optimizer.step()
        if not cured or n_steps % EVERY == 0:
            torch.save(network.state_dict(), Path(folder.name) / "last.pt")  # fault: every step

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train, saving checkpoints.")
    parser.add_argument("--cured", action="store_true")
    train = prepare(cured=parser.parse_args().cured)
    for _ in range(STEPS):
        train()
