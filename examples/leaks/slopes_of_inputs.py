"""Trains a potential whose slopes at the inputs are to be small.

The problem: ``backward(create_graph=True)`` leaves a gradient with a graph in each input, which
refers to the input. ``zero_grad`` clears the gradients of parameters only.

Run: ``python examples/leaks/slopes_of_inputs.py [--steps N]``
"""

import argparse

import torch
from torch import nn


def main() -> None:
    """Train with a penalty on the slopes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=160)
    torch.manual_seed(54)
    model = nn.Sequential(nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(parser.parse_args().steps):
        x = torch.randn(64, 96, requires_grad=True)  # allocated here
        optimizer.zero_grad()
        model(x).square().mean().backward(create_graph=True)  # fault: x.grad is never cleared
        optimizer.step()
    print("trained")


if __name__ == "__main__":
    main()
