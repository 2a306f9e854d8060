"""Trains a network, one layer of which is created in ``forward``.

The problem: the layer has new weights at each call, which are never trained.

The fix (``--cured``): it is created in ``__init__``.

Run: ``python examples/host/layer_in_forward.py [--cured]``
"""

import argparse
from collections.abc import Callable

import torch
from torch import nn

SEED, STEPS = 11, 30
FEATURES, HIDDEN, CLASSES, ROWS = 64, 768, 10, 32


class Network(nn.Module):
    """A network of three layers.

    Args:
        cured: Whether the layer in the middle is one of the network's.
    """

    def __init__(self, *, cured: bool) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, HIDDEN)
        self.middle = nn.Linear(HIDDEN, HIDDEN) if cured else None
        self.last = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of each row."""
        x = torch.relu(self.first(x))
        middle = self.middle
        if middle is None:
            middle = nn.Linear(HIDDEN, HIDDEN)  # fault: built anew, with other weights
        return self.last(torch.relu(middle(x)))


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return what runs a step."""
    torch.manual_seed(SEED)
    network = Network(cured=cured)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    x, y = torch.randn(ROWS, FEATURES), torch.randint(CLASSES, (ROWS,))

    def step() -> None:
        loss = nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a network.")
    parser.add_argument("--cured", action="store_true")
    run_step = prepare(cured=parser.parse_args().cured)
    for _ in range(STEPS):
        run_step()
