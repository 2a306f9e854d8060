"""Trains a network of many layers on a CPU.

The problem: the optimizer updates one parameter after the other, with several operators each.

The fix (``--cured``): ``fused=True`` updates all parameters in one operator.

Run: ``python examples/truth/programs/unfused_update.py [--cured]``
"""

import argparse
from collections.abc import Callable

import torch
from torch import nn

SEED, STEPS = 7, 40
LAYERS, WIDTH, BATCH = 24, 256, 32
MOMENTUM = 0


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return the step of training."""
    torch.manual_seed(SEED)
    hidden = (part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU()))
    network = nn.Sequential(*hidden, nn.Linear(WIDTH, 1))
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, fused=cured)
        if MOMENTUM
        else torch.optim.AdamW(network.parameters(), lr=1e-3, fused=cured)
    )
    x, y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, 1)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(network(x), y).backward()
        optimizer.step()  # fault: a dozen operators per parameter

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train with an optimizer.")
    parser.add_argument("--cured", action="store_true")
    train = prepare(cured=parser.parse_args().cured)
    for _ in range(STEPS):
        train()
