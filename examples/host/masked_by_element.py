"""Trains a network to repeat sequences of several lengths.

The problem: a loop in Python compares each position with the length, and writes the mask element by
element: thousands of operators on a single number each.

The fix (``--cured``): one comparison of all positions with all lengths, by broadcasting.

Run: ``python examples/host/masked_by_element.py [--cured]``
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn

SEED, STEPS = 7, 20
ROWS, POSITIONS, WIDTH = 16, 40, 32


def mask_of(lengths: Tensor, *, cured: bool) -> Tensor:
    """Return which positions are in sequences of some lengths. Shape ``(rows, positions)``."""
    if cured:
        return (torch.arange(POSITIONS) < lengths[:, None]).float()

    mask = torch.zeros(len(lengths), POSITIONS)
    for row in range(len(lengths)):
        for position in range(POSITIONS):
            mask[row, position] = position < lengths[row]  # fault: an operator for each number
    return mask


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return the step of training."""
    torch.manual_seed(SEED)
    network = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    sequences = torch.randn(ROWS, POSITIONS, WIDTH)
    lengths = torch.randint(1, POSITIONS, (ROWS,))

    def step() -> None:
        mask = mask_of(lengths, cured=cured)
        errors = (network(sequences) - sequences).square().mean(dim=-1)
        loss = (errors * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on sequences of several lengths.")
    parser.add_argument("--cured", action="store_true")
    train = prepare(cured=parser.parse_args().cured)
    for _ in range(STEPS):
        train()
