"""Trains a network whose activation function is written by hand.

The problem: GELU is computed by eight elementwise kernels, and its gradient by more. Each of them
reads and writes all activations.

The fix (``--cured``): ``torch.nn.functional.gelu``, one kernel in each direction.

Run: ``python examples/gpu/unfused_pointwise.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import Tensor, nn

LAYERS = 4


def gelu(x: Tensor) -> Tensor:
    """Return the approximation of GELU by tanh."""
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3)))  # fault: eight kernels


class Gelu(nn.Module):
    """GELU by hand."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the activations, of the inputs' shape."""
        return gelu(x)


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=200, arguments=arguments)
    width = measured.scaled(options, measured.WIDTH)
    activation = nn.GELU(approximate="tanh") if options.cured else Gelu()
    parts = [part for _ in range(LAYERS) for part in (nn.Linear(width, width), activation)]
    network = nn.Sequential(*parts, nn.Linear(width, measured.KINDS)).to(options.device)
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
