"""Trains a recommender with a large table of items, of which each batch reads few.

The problem: the table has a dense gradient, and Adam updates all of its rows in every step.

The fix (``--cured``): a sparse gradient, and an optimizer that updates the rows that were read.

Run: ``python examples/host/dense_table.py [--cured]``
"""

import argparse
from collections.abc import Callable

import torch
from torch import nn

SEED, STEPS = 7, 20
ITEMS, COLUMNS, BATCH = 30_000, 32, 64


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return the step of training."""
    torch.manual_seed(SEED)
    table = nn.Embedding(ITEMS, COLUMNS, sparse=cured)
    head = nn.Linear(COLUMNS, 1)
    optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(head.parameters(), lr=1e-3)]
    of_table = torch.optim.SparseAdam if cured else torch.optim.Adam
    optimizers.append(of_table(table.parameters(), lr=1e-3))

    def step() -> None:
        items, ratings = torch.randint(ITEMS, (BATCH,)), torch.rand(BATCH, 1)
        loss = nn.functional.mse_loss(head(table(items)), ratings)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()  # fault: of all rows of the table

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a recommender.")
    parser.add_argument("--cured", action="store_true")
    train = prepare(cured=parser.parse_args().cured)
    for _ in range(STEPS):
        train()
