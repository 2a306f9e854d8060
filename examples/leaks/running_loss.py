"""Trains a regression and prints the mean loss of the whole run at its end.

The problem: ``total = total + loss`` adds tensors. There is only one total at any time, but its
autograd graph reaches back to the first step, through the graph of every loss.

Run: ``python examples/leaks/running_loss.py [--steps N] [--width N]``
"""

import argparse

import torch
from torch import Tensor, nn


def build(width: int) -> nn.Module:
    """Build a perceptron with two hidden layers."""
    return nn.Sequential(
        nn.Linear(16, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
    )


def train(model: nn.Module, steps: int, device: torch.device) -> float:
    """Train for that many steps and return the mean loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    total: Tensor | float = 0.0
    for _ in range(steps):
        x = torch.randn(128, 16, device=device)
        y = x.sin().sum(1, keepdim=True)
        loss = nn.functional.mse_loss(model(x), y)  # allocated here
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total = total + loss  # fault: the sum has a graph of its own
    return float(total) / steps


def main() -> None:
    """Read the arguments and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    mean = train(build(options.width).to(device), options.steps, device)
    print(f"mean loss over {options.steps} steps: {mean:.4f}")


if __name__ == "__main__":
    main()
