"""Trains a wide network on small batches.

The problem: every gradient is filled with zeros before each backward pass, which then reads the
zeros to add to them. ``zeroed_gradients_cured.py`` is the same program without it.

Run: ``python examples/zeroed_gradients.py [STEPS] [--sizes WIDTH BATCH]``
"""

import argparse

import torch
from torch import nn

SEED, FEATURES, CLASSES = 7, 256, 10


def main() -> None:
    """Read the arguments and train."""
    parser = argparse.ArgumentParser(description="Train, filling gradients with zeros.")
    parser.add_argument("steps", nargs="?", type=int, default=100)
    parser.add_argument("--sizes", nargs=2, type=int, default=[1024, 16])
    options = parser.parse_args()
    width, batch = options.sizes
    torch.manual_seed(SEED)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = nn.Sequential(
        nn.Linear(FEATURES, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, CLASSES),
    ).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    features = torch.randn(batch, FEATURES, device=device)
    labels = torch.randint(CLASSES, (batch,), device=device)
    for _ in range(options.steps):
        optimizer.zero_grad(set_to_none=False)  # fault: fills every gradient
        nn.functional.cross_entropy(network(features), labels).backward()
        optimizer.step()
    with torch.no_grad():
        print(f"loss: {nn.functional.cross_entropy(network(features), labels).item():.4f}")


if __name__ == "__main__":
    main()
