"""Learns initial weights from which one gradient step is enough for each task.

No leak: graphs of gradients are created in every step, and freed at its end.

Run: ``python examples/leaks/clean_meta_learning.py [--meta-steps N]``
"""

import argparse

import torch
from torch import nn
from torch.func import functional_call

INNER, TASKS = 2, 3


def adapted(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the weights after some steps on a task, with their autograd graph."""
    weights: dict[str, torch.Tensor] = {**dict(net.named_parameters())}
    for _ in range(INNER):
        loss = nn.functional.mse_loss(functional_call(net, weights, x), y)
        slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        weights = {
            name: weight - 0.01 * slope
            for (name, weight), slope in zip(weights.items(), slopes, strict=True)
        }
    return weights


def main() -> None:
    """Learn the initial weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--meta-steps", type=int, default=110)
    torch.manual_seed(42)
    net = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
    outer = torch.optim.Adam(net.parameters(), lr=1e-3)
    running = 0.0

    for _ in range(parser.parse_args().meta_steps):
        outer.zero_grad()
        for _ in range(TASKS):
            x = torch.rand(24, 1) * 10 - 5
            y = torch.sin(x + torch.rand(1) * 3)
            weights = adapted(net, x[:12], y[:12])
            meta = nn.functional.mse_loss(functional_call(net, weights, x[12:]), y[12:]) / TASKS
            meta.backward()
            running = 0.95 * running + 0.05 * meta.item()
        outer.step()

    print(f"after one step of descent: {running * TASKS:.4f}")


if __name__ == "__main__":
    main()
