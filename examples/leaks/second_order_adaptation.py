"""Adapts a copy of the model to each task, and learns the initial weights.

The problem: ``backward(create_graph=True)`` leaves in each copy gradients whose graph refers to
the copy's own parameters. The garbage collector cannot see that reference cycle in PyTorch's C++.

Run: ``python examples/leaks/second_order_adaptation.py [TASKS]``
"""

import copy
import sys

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector as flat


def make_model() -> nn.Module:
    """Return a small network."""
    return nn.Sequential(
        nn.Linear(8, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 1)
    )


def task() -> tuple[Tensor, Tensor]:
    """Points of a wave."""
    amplitude, phase = torch.rand(1) * 4 + 1, torch.rand(8) * 3
    x = torch.rand(20, 8) * 10 - 5
    return x, amplitude * torch.sin(x + phase).sum(-1, keepdim=True)


def roughness(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return a penalty on the gradients."""
    learner = copy.deepcopy(model)  # allocated here
    loss = nn.functional.mse_loss(learner(x), y)  # allocated here
    loss.backward(create_graph=True)  # fault: torch.autograd.grad would leave no gradients behind
    slopes = [p.grad for p in learner.parameters() if p.grad is not None]
    return flat(slopes).norm().item()  # allocated here


def main(tasks: int) -> None:
    """Train."""
    torch.manual_seed(35)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for number in range(tasks):
        x, y = task()
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        rough = roughness(model, *task())
        if number % 20 == 0:
            print(f"task {number}: roughness {rough:.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 110)
