"""Trains a network in float16 with a gradient scaler.

The problem: AdamW as it is by default. Before each step the scaler reads whether all gradients are
finite, and the host waits for the backward pass.

The fix (``--cured``): ``fused=True``. The optimizer gets the answer on the device.

Run: ``python examples/gpu/scaler_sync.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import nn

WIDTH = 4096
ROWS = 8192


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=300, arguments=arguments)
    kind = torch.device(options.device).type
    network = measured.network(options, layers=2, width=WIDTH)
    x, y = measured.batch(options, rows=ROWS, width=WIDTH)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=options.cured or None)
    scaler = torch.amp.GradScaler(kind)
    loss = torch.zeros(())
    for _ in measured.steps(options):
        with torch.autocast(kind, dtype=torch.float16):
            loss = nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # fault: reads whether gradients are finite
        scaler.update()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
