"""Trains a network in float32 whose kernels are limited by memory bandwidth.

The problem: weights, activations and products are float32, PyTorch's default: every number takes
four bytes of bandwidth, and tensor cores are not used.

The fix (``--cured``): ``torch.autocast`` with bfloat16, around the forward pass.
``fp32_matmul.py`` goes half of the way: its fix allows TF32, and moves as many bytes.

Run: ``python examples/gpu/fp32_without_autocast.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import nn


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
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
