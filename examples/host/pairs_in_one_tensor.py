"""Trains embeddings so that those of neighbours are close.

The problem: the distances of all pairs are computed from a tensor of all differences, which is as
many times as large as the batch has rows.

The fix (``--cured``): ``torch.cdist`` computes them without it.

Run: ``python examples/host/pairs_in_one_tensor.py [--cured]``
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn

SEED, STEPS = 7, 20
ROWS, COLUMNS, WIDTH = 192, 32, 64


def distances(rows: Tensor, *, cured: bool) -> Tensor:
    """Return the squared distances of all pairs of rows."""
    if cured:
        return torch.cdist(rows, rows).square()
    differences = rows[:, None] - rows[None]  # fault: (rows, rows, columns)
    return differences.square().sum(-1)


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return the step of training."""
    torch.manual_seed(SEED)
    network = nn.Sequential(nn.Linear(COLUMNS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    batch = torch.randn(ROWS, COLUMNS)
    wanted = torch.rand(ROWS, ROWS)

    def step() -> None:
        loss = (distances(network(batch), cured=cured) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train embeddings.")
    parser.add_argument("--cured", action="store_true")
    train = prepare(cured=parser.parse_args().cured)
    for _ in range(STEPS):
        train()
