"""Trains, evaluates every 20 steps, and stores a copy of the best weights so far.

No leak: an evaluation takes much memory and frees it, and there is one best copy.

Run: ``python examples/leaks/clean_periodic_evaluation.py [--steps N] [--every N]``
"""

import argparse
import copy
import math

import torch
from torch import Tensor, nn


class Experiment:
    """A model with its data and optimizer."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(20, 300), nn.ReLU(), nn.Linear(300, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.held_out = torch.randn(5000, 20)
        self.best = math.inf
        self.best_state: dict[str, Tensor] = {}
        self.curve: list[tuple[int, float]] = []

    def loss(self, x: Tensor) -> Tensor:
        """Return the loss of some rows."""
        return nn.functional.mse_loss(self.model(x).squeeze(1), x[:, 0] * x[:, 1])

    @torch.no_grad()
    def evaluate(self, step: int) -> None:
        """Evaluate, and store the weights if they are the best."""
        self.model.eval()
        outputs = [self.model(part) for part in self.held_out.split(500)]
        error = (torch.cat(outputs).squeeze(1) - self.held_out[:, 0] * self.held_out[:, 1]).std()
        self.curve.append((step, error.item()))
        if error.item() < self.best:
            self.best = error.item()
            self.best_state = copy.deepcopy(self.model.state_dict())
        self.model.train()

    def run(self, steps: int, every: int) -> None:
        """Train, and restore the best weights."""
        for step in range(1, steps + 1):
            loss = self.loss(torch.randn(128, 20))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % every == 0:
                self.evaluate(step)
        if self.best_state:
            self.model.load_state_dict(self.best_state)
        print(f"best {self.best:.4f} of {len(self.curve)} evaluations")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("--every", type=int, default=20)
    arguments = parser.parse_args()
    torch.manual_seed(49)
    Experiment().run(arguments.steps, arguments.every)
