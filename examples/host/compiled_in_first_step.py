"""Trains a small network whose activation is compiled by TorchScript.

The problem: the activation is compiled in the first step, and a measurement of the steps contains
that.

The fix (``--cured``): it is compiled before the first step.

Run: ``python examples/host/compiled_in_first_step.py [--cured]``
"""

import argparse
from collections.abc import Callable

import torch
from torch import nn

SEED, STEPS = 7, 200
WIDTH, BATCH = 64, 32


def activation(x: torch.Tensor) -> torch.Tensor:
    """Return a smooth activation."""
    return x * torch.sigmoid(1.702 * x)


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return the step of training."""
    torch.manual_seed(SEED)
    first, last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
    optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.01)
    x, y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, 1)
    compiled = [torch.jit.script(activation)] if cured else []

    def step() -> None:
        if not compiled:
            compiled.append(torch.jit.script(activation))  # fault: in the first step
        optimizer.zero_grad()
        nn.functional.mse_loss(last(compiled[0](first(x))), y).backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train with a compiled activation.")
    parser.add_argument("--cured", action="store_true")
    train = prepare(cured=parser.parse_args().cured)
    for _ in range(STEPS):
        train()
