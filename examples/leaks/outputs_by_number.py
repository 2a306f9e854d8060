"""Trains a layer that remembers its outputs as buffers, to be plotted later.

The problem: each call registers a buffer with another name.

Run: ``python examples/leaks/outputs_by_number.py [STEPS]``
"""

import sys

import torch
from torch import Tensor, nn


class Tracked(nn.Module):
    """A linear layer with a memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(128, 128)
        self.n_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output and remember it."""
        y: Tensor = self.layer(x)
        self.register_buffer(f"output_{self.n_calls}", y.detach().clone())  # fault: allocated here
        self.n_calls += 1
        return y


def main() -> None:
    """Train for some steps."""
    torch.manual_seed(74)
    model = Tracked()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 140):
        optimizer.zero_grad()
        model(torch.randn(128, 128)).pow(2).mean().backward()
        optimizer.step()

    print(model.n_calls)


if __name__ == "__main__":
    main()
