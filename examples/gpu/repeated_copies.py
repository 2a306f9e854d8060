"""Trains layers of attention over many short sequences.

The problem: ``contiguous()`` after ``transpose()``. It copies queries, keys and values, which the
fused attention reads with any strides.

The fix (``--cured``): the same without it.

Run: ``python examples/gpu/repeated_copies.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import Tensor, nn

LAYERS = 4
WIDTH = 512
HEAD = 64
BATCH = 256
LENGTH = 128


class Attention(nn.Module):
    """A layer of attention with a residual connection.

    Args:
        width: Inputs and outputs.
        copies: Whether queries, keys and values are copied into another layout.
    """

    def __init__(self, width: int, *, copies: bool) -> None:
        super().__init__()
        self.inwards, self.outwards = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.copies = copies

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, of the inputs' shape."""
        parts = self.inwards(x).unflatten(-1, (-1, HEAD)).chunk(3, -2)
        parts = [part.transpose(1, 2) for part in parts]
        if self.copies:
            parts = [part.contiguous() for part in parts]  # fault: three copies per layer
        attended = nn.functional.scaled_dot_product_attention(*parts)
        return x + self.outwards(attended.transpose(1, 2).flatten(2))


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=200, arguments=arguments)
    width = measured.scaled(options, WIDTH, HEAD)
    layers = [Attention(width, copies=not options.cured) for _ in range(LAYERS)]
    network = nn.Sequential(*layers).to(options.device, torch.bfloat16)
    size = measured.scaled(options, BATCH), measured.scaled(options, LENGTH), width
    x = torch.randn(size, device=options.device, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in measured.steps(options):
        loss = network(x)[:, 0].float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
