"""Trains a network in mixed precision made by hand.

The fault: each layer casts its input and its weight to bfloat16 and its output back to float32, so
that activations are read and written twice as often as they are worked on.

The cure (``--cured``): ``torch.autocast``. It casts a weight once, and leaves activations as they
came out.

Run: ``python examples/gpu/cast_each_layer.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import Tensor, nn

LAYERS = 8


class CastingLinear(nn.Linear):
    """A linear layer that works in bfloat16 and takes and gives float32."""

    def forward(self, x: Tensor) -> Tensor:
        """The layer's outputs."""
        weight, bias = self.weight.bfloat16(), self.bias.bfloat16()
        return nn.functional.linear(x.bfloat16(), weight, bias).float()  # fault: back and forth


def main(arguments: Sequence[str] | None = None) -> float:
    """Train; the last loss."""
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
