"""Trains on batches, and reads the same ones again for statistics.

The problem: ``itertools.tee`` stores every batch that one of its two readers has read and the other
has not; the second starts when the first has ended.

Run: ``python examples/leaks/tee_of_batches.py [--batches N]``
"""

import argparse
import itertools
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]


def batches(n: int) -> Iterator[Batch]:
    """Yield that many batches, always the same ones."""
    source = torch.Generator().manual_seed(36)
    for _ in range(n):
        x = torch.randn(40, 500, generator=source)  # allocated here
        yield x, x[:, :3].sum(-1)


def train(model: nn.Module, stream: Iterable[Batch]) -> float:
    """Train and return the sum of the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    total = 0.0
    for x, y in stream:
        optimizer.zero_grad()
        loss = (model(x).squeeze(-1) - y).square().mean()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total


def main() -> None:
    """Train, then compute statistics of the data."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=150)
    n = parser.parse_args().batches
    model = nn.Sequential(nn.Linear(500, 32), nn.ReLU(), nn.Linear(32, 1))
    for_training, for_statistics = itertools.tee(batches(n))  # fault: one waits for the other
    print("loss", train(model, for_training) / n)
    print("mean", sum(x.mean().item() for x, _ in for_statistics) / n)


main()
