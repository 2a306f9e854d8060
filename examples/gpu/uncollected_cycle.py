"""Trains a network with the garbage collector off, which makes step times more even.

The problem: a batch refers to its parts, and each part to its batch. Only the garbage collector can
free such a reference cycle, and it never runs.

The fix (``--cured``): a part has a weak reference to its batch.

Run: ``python examples/gpu/uncollected_cycle.py [--cured] [--steps N] [--device cuda]``
"""

import gc
import weakref
from collections.abc import Callable, Sequence

import measured
import torch
from torch import Tensor, nn

MADE = 64
"""Rows that each step makes beside its data."""


class Part:
    """Some rows of a batch.

    Args:
        batch: Returns its batch.
    """

    def __init__(self, batch: "Callable[[], Batch | None]", rows: Tensor) -> None:
        self.batch = batch
        self.rows = rows


class Batch:
    """Rows in two parts.

    Args:
        weakly: Whether the parts have weak references to the batch.
    """

    def __init__(self, x: Tensor, *, weakly: bool) -> None:
        known_by: Callable[[], Batch | None] = weakref.ref(self) if weakly else lambda: self
        noise = torch.ones_like(x[:MADE]) / 8  # fault: the reference cycle retains it
        self.parts = [Part(known_by, x), Part(known_by, x[:MADE] + noise)]
        self.noise = noise

    def rows(self) -> Tensor:
        """All rows."""
        return torch.cat([part.rows for part in self.parts])


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=200, arguments=arguments)
    network = measured.network(options)
    x, y = measured.batch(options)
    kinds = torch.cat([y, y[:MADE]])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    gc.disable()
    try:
        for _ in measured.steps(options):
            batch = Batch(x, weakly=options.cured)
            loss = nn.functional.cross_entropy(network(batch.rows()), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    finally:
        gc.enable()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
