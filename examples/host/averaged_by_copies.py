"""Fits a curve, and keeps a moving average of the weights.

The problem: each step copies all weights, and makes three new tensors for the average of each.

The fix (``--cured``): one operator averages all weights in place.

Run: ``python examples/host/averaged_by_copies.py [--cured]``
"""

import argparse
import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

SEED, STEPS = 7, 20
ROWS, WIDTH, UNITS = 32, 8, 512
DECAY = 0.99


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return the step of training."""
    torch.manual_seed(SEED)
    network = nn.Sequential(
        nn.Linear(WIDTH, UNITS), nn.ReLU(), nn.Linear(UNITS, UNITS), nn.ReLU(), nn.Linear(UNITS, 1)
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    averages = copy.deepcopy(network.state_dict())
    x, y = torch.randn(ROWS, WIDTH), torch.randn(ROWS, 1)

    def average() -> None:
        if cured:
            weights = list(network.state_dict().values())
            torch._foreach_lerp_(list(averages.values()), weights, 1 - DECAY)
            return
        for name, value in copy.deepcopy(network.state_dict()).items():
            averages[name] = (
                DECAY * averages[name] + (1 - DECAY) * value
            )  # fault: three new tensors

    def step() -> None:
        loss = functional.mse_loss(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average()

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fit a curve.")
    parser.add_argument("--cured", action="store_true")
    train = prepare(cured=parser.parse_args().cured)
    for _ in range(STEPS):
        train()
