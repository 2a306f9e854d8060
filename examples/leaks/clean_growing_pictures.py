"""Trains on images that grow in three stages, the last of which begins before half of the run.

No leak: each stage takes more memory than the previous one, and then stays constant.

Run: ``python examples/leaks/clean_growing_pictures.py [--steps N]``
"""

import argparse

import torch
from torch import nn


def side_at(step: int, steps: int) -> int:
    """Width of the images of a step."""
    if step < steps // 6:
        return 16
    return 24 if step < 2 * steps // 5 else 40


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    steps = parser.parse_args().steps

    torch.manual_seed(58)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for step in range(steps):
        side = side_at(step, steps)
        pictures, kinds = torch.rand(16, 3, side, side), torch.randint(10, (16,))
        scores = model(pictures)
        loss = nn.functional.cross_entropy(scores, kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    print(f"loss {loss.item():.4f}, pictures of {side} x {side} at the end")


if __name__ == "__main__":
    main()
