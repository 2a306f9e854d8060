"""Trains a network in float32 whose activations are read and written again and again.

The fault: weights, activations and products are all in full float32, as PyTorch does it unless it
is told otherwise: four bytes for each number that is moved, and tensor cores are not used at all.

The cure (``--cured``): ``torch.autocast`` with bfloat16, around the forward pass.
``fp32_matmul.py`` goes half of the way: its cure lets products use TF32, and moves as much.

Run: ``python examples/gpu/fp32_without_autocast.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import nn


def main(arguments: Sequence[str] | None = None) -> float:
    """Train; the last loss."""
    options = measured.options(__doc__, steps=150, arguments=arguments)
    torch.set_float32_matmul_precision("highest")
    kind = torch.device(options.device).type
    network = measured.network(options)
    x, y = measured.batch(options)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in measured.steps(options):
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=options.cured):
            loss = nn.functional.cross_entropy(network(x), y)  # fault: all of it in float32
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
