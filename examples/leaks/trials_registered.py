"""Searches a learning rate: each trial trains a model of its own.

The problem: the class remembers each trial, with its model, gradients and optimizer.

Run: ``python examples/leaks/trials_registered.py [TRIALS]``
"""

import sys
from typing import ClassVar

import torch
from torch import nn

WIDTH = 96


class Trial:
    """A model with one learning rate."""

    registry: ClassVar[list["Trial"]] = []

    def __init__(self, rate: float) -> None:
        self.model = nn.Linear(WIDTH, WIDTH)  # allocated here
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, momentum=0.9)
        self.registry.append(self)  # fault: only the best one is needed

    def run(self, n_steps: int = 2) -> float:
        """Train, and return the last loss."""
        loss = torch.zeros(())
        for _ in range(n_steps):
            x = torch.randn(8, WIDTH)
            loss = (self.model(x) - x).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()  # allocated here
            self.optimizer.step()  # allocated here
        return loss.item()


def main() -> None:
    """Search."""
    torch.manual_seed(73)
    n_trials = int(sys.argv[1]) if len(sys.argv) > 1 else 120
    print(f"{min(Trial(10.0 ** -(1 + trial % 4)).run() for trial in range(n_trials)):.3f}")


if __name__ == "__main__":
    main()
