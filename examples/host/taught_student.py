"""Trains a small network on what a large one predicts.

The problem: the loss has a graph through the large network too, so that the backward pass computes
gradients of its weights, which no optimizer uses.

The fix (``--cured``): the weights of the large network require no gradients.

Run: ``python examples/host/taught_student.py [--cured]``
"""

import argparse
from collections.abc import Callable

import torch
from torch import nn

SEED, STEPS = 7, 20
FEATURES, WIDTH, BATCH = 64, 512, 128


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return the step of training."""
    torch.manual_seed(SEED)
    teacher = nn.Sequential(
        nn.Linear(FEATURES, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, 10),
    )
    if cured:
        teacher.requires_grad_(requires_grad=False)
    student = nn.Linear(FEATURES, 10)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)

    def step() -> None:
        batch = torch.randn(BATCH, FEATURES)
        wanted = teacher(batch)  # fault: its weights require gradients
        loss = nn.functional.mse_loss(student(batch), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a student of a network.")
    parser.add_argument("--cured", action="store_true")
    train = prepare(cured=parser.parse_args().cured)
    for _ in range(STEPS):
        train()
