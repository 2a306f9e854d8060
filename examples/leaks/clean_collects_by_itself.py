"""Trains with the garbage collector off, and collects manually every 20 steps, as large jobs do.

No leak: reference cycles stay for at most 20 steps.

Run: ``python examples/leaks/clean_collects_by_itself.py [STEPS] [EVERY]``
"""

import gc
import sys

import torch
from torch import Tensor, nn


class Sample:
    """A sample that refers to its batch."""

    def __init__(self, batch: "Batch", values: Tensor) -> None:
        self.batch = batch
        self.values = values


class Batch:
    """Some samples."""

    def __init__(self, n: int) -> None:
        self.samples = [Sample(self, torch.randn(1500)) for _ in range(n)]

    def stacked(self) -> Tensor:
        """Return the values of all samples."""
        return torch.stack([sample.values for sample in self.samples])


def main(steps: int, every: int) -> None:
    """Train."""
    torch.manual_seed(54)
    gc.disable()
    model = nn.Sequential(nn.Linear(1500, 40), nn.ReLU(), nn.Linear(40, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(1, steps + 1):
        x = Batch(24).stacked()
        loss = nn.functional.mse_loss(model(x).squeeze(1), x.mean(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % every == 0:
            gc.collect()
    print(f"{steps} steps, loss {loss.item():.5f}")


if __name__ == "__main__":
    arguments = [int(text) for text in sys.argv[1:]]
    main(*(arguments + [200, 20][len(arguments) :]))
