"""Fine-tunes the last layer of a large network, and stores a little of each step.

The problem: a leak of 64 KiB per step, beside 200 MiB that do not change.

Run: ``python examples/leaks/beside_ballast.py [--steps N]``
"""

import argparse
from typing import Any

import torch
from torch import nn


class Backbone(nn.Module):
    """Large, frozen, and hardly used here."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(200 * 1024, 256)
        self.table.requires_grad_(requires_grad=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Features of tokens."""
        return self.table(tokens).mean(1)  # allocated here


class FineTuning:
    """Trains a head on a backbone."""

    def __init__(self) -> None:
        self.backbone = Backbone()
        self.head = nn.Linear(256, 4)
        self.optimizer = torch.optim.AdamW(self.head.parameters(), lr=1e-3)
        self.log: dict[str, list[Any]] = {"loss": [], "features": []}

    def step(self, tokens: torch.Tensor, labels: torch.Tensor) -> None:
        """Train on one batch."""
        features = self.backbone(tokens)  # allocated here
        loss = nn.functional.cross_entropy(self.head(features), labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.log["loss"].append(loss.item())
        self.log["features"].append(features)  # fault: 64 rows of 256 numbers


def main() -> None:
    """Fine-tune."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=140)
    torch.manual_seed(27)
    steps = parser.parse_args().steps
    run = FineTuning()
    for _ in range(steps):
        tokens = torch.randint(200 * 1024, (64, 30))
        run.step(tokens, tokens[:, 0] % 4)
    print(f"loss {sum(run.log['loss'][-10:]) / 10:.4f}")


if __name__ == "__main__":
    main()
