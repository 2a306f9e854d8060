"""Trains a network and adds up its losses.

The fault: ``.item()`` brings each loss to the host, which waits until the device has done the whole
step, and only then sends it the next one: the device is idle meanwhile.

The cure (``--cured``): the losses are added up on the device and read once, in the end.

Run: ``python examples/gpu/item_each_step.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import nn


def main(arguments: Sequence[str] | None = None) -> None:
    """Train."""
    options = measured.options(__doc__, steps=200, arguments=arguments)
    torch.manual_seed(1)
    width = measured.scaled(options, 256)
    layers = [layer for _ in range(12) for layer in (nn.Linear(width, width), nn.ReLU())]
    network = nn.Sequential(*layers, nn.Linear(width, 10)).to(options.device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    x = torch.randn(128, width, device=options.device)
    y = torch.randint(10, (128,), device=options.device)
    total: torch.Tensor | float = 0.0
    for _ in measured.steps(options):
        loss = nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if options.cured:
            total = total + loss.detach()
        else:
            total = total + loss.item()  # fault: the host waits for the device
    print(f"mean loss {float(total) / options.steps:.3f}")


if __name__ == "__main__":
    main()
