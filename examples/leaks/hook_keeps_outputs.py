"""Trains while a forward hook checks one layer for dead units.

The problem: the hook appends every output of the layer to its own list. The list is in the
hook's closure, outside of the training loop.

Run: ``python examples/leaks/hook_keeps_outputs.py [STEPS]``
"""

import sys
from typing import Any

import torch
from torch import Tensor, nn


def watch_dead_units(layer: nn.Module, every: int) -> None:
    """Print now and then which share of a layer's units has been dead so far."""
    kept: list[Tensor] = []

    def remember(_module: nn.Module, _inputs: Any, output: Tensor) -> None:  # noqa: ANN401
        kept.append(output.detach())  # fault: retained as long as the hook
        if len(kept) % every == 0:
            alive = torch.stack([(output > 0).any(0) for output in kept]).any(0)
            print(f"{1 - alive.float().mean().item():.0%} of the units are dead")

    layer.register_forward_hook(remember)


class Net(nn.Module):
    """Two layers and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 200)
        self.act = nn.ReLU()
        self.head = nn.Linear(200, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return one number for each row."""
        return self.head(self.act(self.first(x)))  # allocated here


def main(steps: int) -> None:
    """Train."""
    torch.manual_seed(6)
    net = Net()
    watch_dead_units(net.act, every=50)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    for _ in range(steps):
        x = torch.randn(80, 24)
        loss = nn.functional.huber_loss(net(x), x.prod(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{steps} steps, loss {loss.item():.4f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
