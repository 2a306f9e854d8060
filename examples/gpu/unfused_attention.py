"""Trains layers of attention that is written by hand.

The problem: the scores of all heads are written to memory, scaled, and read again by the softmax
and by the second product: the square of the sequence's length, several times.

The fix (``--cured``): ``scaled_dot_product_attention``, one kernel that keeps the scores on chip.

Run: ``python examples/gpu/unfused_attention.py [--cured] [--steps N] [--device cuda]``
"""

import math
from collections.abc import Sequence

import measured
import torch
from torch import Tensor, nn

LAYERS = 2
WIDTH = 1024
HEAD = 64
BATCH = 8
LENGTH = 1024


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention as products and a softmax."""
    return (q @ k.transpose(-2, -1) / math.sqrt(HEAD)).softmax(-1) @ v  # fault: writes all scores


class Attention(nn.Module):
    """A layer of attention with a residual connection.

    Args:
        width: Inputs and outputs.
        fused: Whether attention is one kernel.
    """

    def __init__(self, width: int, *, fused: bool) -> None:
        super().__init__()
        self.inwards, self.outwards = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.attend = nn.functional.scaled_dot_product_attention if fused else by_hand

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, of the inputs' shape."""
        q, k, v = self.inwards(x).unflatten(-1, (3, -1, HEAD)).transpose(1, 3).unbind(2)
        return x + self.outwards(self.attend(q, k, v).transpose(1, 2).flatten(2))


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=120, arguments=arguments)
    width = measured.scaled(options, WIDTH, HEAD)
    layers = [Attention(width, fused=options.cured) for _ in range(LAYERS)]
    network = nn.Sequential(*layers).to(options.device, torch.bfloat16)
    size = measured.scaled(options, BATCH, 1), measured.scaled(options, LENGTH), width
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
