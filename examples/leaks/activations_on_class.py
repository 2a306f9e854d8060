"""Trains a network whose layers store their outputs, to draw histograms later.

The problem: they are stored in a list on the class, shared by all layers and never cleared.

Run: ``python examples/leaks/activations_on_class.py [--steps N]``
"""

import argparse

import torch
from torch import Tensor, nn


class NotedLinear(nn.Linear):
    """A linear layer that stores its outputs for later."""

    seen: list[Tensor] = []  # noqa: RUF012  (the fault: one list for every layer)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's outputs."""
        out = super().forward(x)  # allocated here
        NotedLinear.seen.append(out.detach())  # fault: the list is never cleared
        return out


def run(steps: int) -> None:
    """Train, then print a summary of the outputs."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = nn.Sequential(NotedLinear(32, 128), nn.GELU(), NotedLinear(128, 8)).to(device)
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    for step in range(steps):
        x = torch.randn(96, 32, device=device)
        loss = (net(x) - x[:, :8]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if (step + 1) % 40 == 0:
            print(f"step {step + 1}: {loss.item():.4f}")
    widest = max(out.abs().max().item() for out in NotedLinear.seen)
    print(f"{len(NotedLinear.seen)} outputs noted, the widest {widest:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=160)
    run(parser.parse_args().steps)
