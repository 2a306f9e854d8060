"""Fits a copy of the model to each task, with a penalty on its gradients.

No leak: the gradients have an autograd graph, since the penalty is computed from them, but
``torch.autograd.grad`` returns them and leaves none in ``.grad``: they end with the step.

Run: ``python examples/leaks/clean_gradient_penalty.py [TASKS]``
"""

import copy
import sys

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector as flat

PENALTY = 1e-3


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
    learner = copy.deepcopy(model)
    loss = nn.functional.mse_loss(learner(x), y)
    slopes = torch.autograd.grad(loss, list(learner.parameters()), create_graph=True)
    return flat(slopes).norm().item()


def penalized(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss with the penalty."""
    loss = nn.functional.mse_loss(model(x), y)
    slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    return loss + PENALTY * flat(slopes).square().sum()


def main(tasks: int) -> None:
    """Train."""
    torch.manual_seed(36)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for number in range(tasks):
        optimizer.zero_grad()
        penalized(model, *task()).backward()
        optimizer.step()
        rough = roughness(model, *task())
        if number % 20 == 0:
            print(f"task {number}: roughness {rough:.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 130)
