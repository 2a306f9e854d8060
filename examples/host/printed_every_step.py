"""Trains a small network and prints what it does.

The problem: the gradients are printed in every step, which takes longer than to compute them.

The fix (``--cured``): they are printed every 100 steps.

Run: ``python examples/host/printed_every_step.py [--cured]``
"""

import argparse
from collections.abc import Callable

import torch
from torch import nn

SEED, STEPS, EVERY = 7, 200, 100
WIDTH, BATCH = 64, 32


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return the step of training."""
    torch.manual_seed(SEED)
    network = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    x, y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, 1)
    n_steps = 0

    def step() -> None:
        nonlocal n_steps
        n_steps += 1
        optimizer.zero_grad()
        nn.functional.mse_loss(network(x), y).backward()
        optimizer.step()
        if not cured or n_steps % EVERY == 0:
            print(network[0].weight.grad)  # fault: in every step

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train, printing gradients.")
    parser.add_argument("--cured", action="store_true")
    train = prepare(cured=parser.parse_args().cured)
    for _ in range(STEPS):
        train()
