"""Trains a network that spends its time in matrix products.

The problem: they run in float32, PyTorch's default. GPUs since Ampere have tensor cores for TF32,
which are several times as fast.

The fix (``--cured``): ``torch.set_float32_matmul_precision("high")`` allows TF32 for the factors.
``fp32_without_autocast.py`` goes further, to bfloat16.

Run: ``python examples/gpu/fp32_matmul.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import nn


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=150, arguments=arguments)
    torch.set_float32_matmul_precision("high" if options.cured else "highest")
    network = measured.network(options)
    x, y = measured.batch(options)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in measured.steps(options):
        loss = nn.functional.cross_entropy(network(x), y)  # fault: matrix products in float32
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
