"""Trains a network in mixed precision with explicit casts.

The problem: each layer casts its input and its weight to bfloat16 and its output back to float32,
so the casts read and write every activation again.

The fix (``--cured``): ``torch.autocast``. It casts a weight once, and does not cast outputs back.

Run: ``python examples/gpu/cast_each_layer.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import Tensor, nn

LAYERS = 8


class CastingLinear(nn.Linear):
    """A linear layer that computes in bfloat16, with float32 inputs and outputs."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's outputs."""
        weight, bias = self.weight.bfloat16(), self.bias.bfloat16()
        return nn.functional.linear(x.bfloat16(), weight, bias).float()  # fault: back and forth


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=200, arguments=arguments)
    kind = torch.device(options.device).type
    width = measured.scaled(options, measured.WIDTH)
    linear = nn.Linear if options.cured else CastingLinear
    parts = [part for _ in range(LAYERS) for part in (linear(width, width), nn.ReLU())]
    network = nn.Sequential(*parts, linear(width, measured.KINDS)).to(options.device)
    x, y = measured.batch(options)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in measured.steps(options):
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=options.cured):
            loss = nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
