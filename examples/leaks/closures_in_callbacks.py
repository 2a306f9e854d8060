"""Trains and registers, in each step, a small function that reports on the step on demand.

The problem: each function closes over its step's predictions, and the registry of functions is
emptied at the very end only.

Run: ``python examples/leaks/closures_in_callbacks.py [--steps N]``
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn

reports: list[Callable[[], str]] = []


def report_later(step: int, predicted: Tensor) -> None:
    """Register a report on a step, which is computed on demand."""
    reports.append(lambda: f"step {step}: mean {predicted.mean():.3f}, std {predicted.std():.3f}")


def main() -> None:
    """Train a small autoencoder."""
    parser = argparse.ArgumentParser(description="Train, with reports on demand.")
    parser.add_argument("--steps", type=int, default=90)
    steps = parser.parse_args().steps

    torch.manual_seed(8)
    model = nn.Sequential(nn.Linear(100, 16), nn.Tanh(), nn.Linear(16, 100))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)

    for step in range(steps):
        pictures = torch.rand(256, 100)
        rebuilt = model(pictures)
        loss = nn.functional.l1_loss(rebuilt, pictures)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        predicted = rebuilt.detach().clamp(0, 1)  # allocated here
        report_later(step, predicted)  # fault: not called before the end

    for say in reports[-3:]:
        print(say())


if __name__ == "__main__":
    main()
