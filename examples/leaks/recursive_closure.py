"""Trains on random trees, which an inner function traverses.

The problem: an inner function that calls itself is a reference cycle: the function refers to its
closure, which refers to the function and to the leaves of the tree. The garbage collector is set to
run rarely, so the cycles of many steps accumulate.

Run: ``python examples/leaks/recursive_closure.py [--steps N]``
"""

import argparse
import gc
import random

import torch
from torch import Tensor, nn

FORKS = 0.5
gc.set_threshold(200_000, 50, 50)  # "the collector costs 4% of our steps"


def grow(chance: random.Random, depth: int) -> list:
    """Return a random tree: a list has subtrees, a number is a leaf."""
    return [
        grow(chance, depth - 1) if depth and chance.random() < FORKS else chance.randrange(500)
        for _ in range(2)
    ]


def read(tree: list, table: nn.Embedding) -> Tensor:
    """Return the sum over a tree's leaves, weighted by depth."""
    noise = torch.randn(500, 200)  # allocated here
    leaves: list[Tensor] = []

    def walk(node: list | int, weight: float) -> None:
        if isinstance(node, int):
            leaves.append(weight * (table(torch.tensor(node)) + noise[node]))
            return
        for child in node:
            walk(child, weight / 2)  # fault: walk refers to walk

    walk(tree, 1.0)
    return torch.stack(leaves).sum(0)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps
    torch.manual_seed(14)
    chance = random.Random(14)  # noqa: S311  (trees, not secrets)
    table = nn.Embedding(500, 200)
    optimizer = torch.optim.Adagrad(table.parameters(), lr=0.1)
    for _ in range(steps):
        loss = read(grow(chance, 4), table).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{steps} trees, last loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
