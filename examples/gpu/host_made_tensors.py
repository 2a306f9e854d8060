"""Trains a network whose layers weight their outputs by position.

The problem: each layer creates the weights on the host in every call, and copies them to the
device. Each copy waits for the device.

The fix (``--cured``): the same line creates them on the device.

Run: ``python examples/gpu/host_made_tensors.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import Tensor, nn


class Weighing(nn.Module):
    """A layer whose later outputs have more weight.

    Args:
        width: Inputs and outputs.
        on_device: Whether the weights are created on the device.
    """

    def __init__(self, width: int, *, on_device: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.on_device = on_device

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighted outputs, of the inputs' shape."""
        out = torch.relu(self.linear(x))
        maker = x.device if self.on_device else "cpu"
        weights = torch.linspace(0.5, 1.5, x.shape[1], device=maker).to(x.device)  # fault: a copy
        return out * weights


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=300, arguments=arguments)
    width = measured.scaled(options, measured.WIDTH)
    layers = [Weighing(width, on_device=options.cured) for _ in range(4)]
    network = nn.Sequential(*layers, nn.Linear(width, measured.KINDS)).to(options.device)
    x, y = measured.batch(options)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in measured.steps(options):
        loss = nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
