"""Trains a texture model, and defers saving of its samples.

The problem: a deferred call is a ``functools.partial`` of the function and its arguments. None is
called before the end, so every sample stays in memory.

Run: ``python examples/leaks/deferred_saves.py [STEPS]``
"""

import functools
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

deferred: list[Callable[[], int]] = []


def save(texture: Tensor, *, step: int) -> int:
    """Write a texture to nowhere and return its size."""
    return step * 0 + len(bytes(texture.mul(255).byte().flatten().tolist()))


def defer(action: Callable[..., int], *arguments: Tensor, step: int) -> None:
    """Call something later."""
    deferred.append(functools.partial(action, *arguments, step=step))  # fault: too much is deferred


def run(steps: int) -> int:
    """Train, then run the deferred calls; returns the number of bytes."""
    torch.manual_seed(29)
    model = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.Tanh(), nn.Conv2d(6, 1, 3, padding=1))
    optimizer = torch.optim.Rprop(model.parameters(), lr=1e-3)
    for step in range(steps):
        seed = torch.rand(4, 1, 64, 64)
        texture = model(seed)
        loss = (texture.roll(1, -1) - seed).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            sample = torch.sigmoid(model(seed))  # allocated here
        defer(save, sample, step=step)
    return sum(action() for action in deferred[:4])


if __name__ == "__main__":
    print(f"{run(int(sys.argv[1]) if len(sys.argv) > 1 else 90)} bytes saved")
