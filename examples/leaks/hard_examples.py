"""Trains, and stores the hardest example of each batch for inspection.

The problem: one row of a batch is a view of it. It looks small and retains the whole batch.

Run: ``python examples/leaks/hard_examples.py [STEPS]``
"""

import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
ROWS, COLUMNS = 256, 300


def make_batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of noise, and whether the sum of their first 20 columns is positive."""
    rows = torch.randn(ROWS, COLUMNS)  # allocated here
    return rows, (rows[:, :20].sum(1) > 0).float()


def train() -> list[torch.Tensor]:
    """Train a linear classifier and return the hardest rows."""
    torch.manual_seed(26)
    weights = torch.zeros(COLUMNS, requires_grad=True)
    bias = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.SGD([weights, bias], lr=0.1)
    hardest = []

    for _ in range(STEPS):
        x, y = make_batch()
        losses = nn.functional.binary_cross_entropy_with_logits(
            x @ weights + bias, y, reduction="none"
        )
        hardest.append(x[losses.argmax()])  # fault: a view, 1.2 KB of 300
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()

    return hardest


if __name__ == "__main__":
    rows = train()
    print(f"{len(rows)} hard rows of mean {torch.stack(rows).mean():.4f}")
