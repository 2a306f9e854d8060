"""Trains a network with the garbage collector off, which makes steps more even.

The fault: a batch knows its parts, and each part its batch. Such a ring is freed by the collector
alone, and it never comes.

The cure (``--cured``): a part knows its batch by a weak reference.

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
        batch: Gives the batch that it is of.
        rows: Its rows.
    """

    def __init__(self, batch: "Callable[[], Batch | None]", rows: Tensor) -> None:
        self.batch = batch
        self.rows = rows


class Batch:
    """Rows in two parts.

    Args:
        x: The rows.
        weakly: Whether the parts know it by a weak reference.
    """

    def __init__(self, x: Tensor, *, weakly: bool) -> None:
        known_by: Callable[[], Batch | None] = weakref.ref(self) if weakly else lambda: self
        noise = torch.ones_like(x[:MADE]) / 8  # fault: the ring keeps it
        self.parts = [Part(known_by, x), Part(known_by, x[:MADE] + noise)]
        self.noise = noise

    def rows(self) -> Tensor:
        """All rows."""
        return torch.cat([part.rows for part in self.parts])


def main(arguments: Sequence[str] | None = None) -> float:
    """Train; the last loss."""
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
