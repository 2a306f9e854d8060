"""Trains a wide network on small batches.

The problem: every gradient is filled with zeros before each backward pass, which then reads the
zeros to add to them. ``zeroed_gradients_cured.py`` is the same program without it.

Run: ``python examples/zeroed_gradients.py [STEPS]``
"""

import argparse

import torch
from torch import nn

SEED = 7
FEATURES, HIDDEN, CLASSES, BATCH = 256, 1024, 10, 16


def main() -> None:
    """Read the arguments and train."""
    parser = argparse.ArgumentParser(description="Train, filling gradients with zeros.")
    parser.add_argument("steps", nargs="?", type=int, default=100)
    options = parser.parse_args()
    torch.manual_seed(SEED)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = nn.Sequential(
        nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    measure = nn.CrossEntropyLoss()
    features = torch.randn(BATCH, FEATURES, device=device)
    labels = torch.randint(CLASSES, (BATCH,), device=device)
    for _ in range(options.steps):
        optimizer.zero_grad(set_to_none=False)  # fault: fills every gradient
        measure(network(features), labels).backward()
        optimizer.step()
    with torch.no_grad():
        print(f"loss: {measure(network(features), labels).item():.4f}")


if __name__ == "__main__":
    main()
