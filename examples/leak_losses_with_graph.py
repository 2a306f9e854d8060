"""Trains a network, evaluates it on held-out data in every step, and stores the losses as tensors.

The problem: the held-out loss is appended to a list with its autograd graph. It has no backward
pass, so the graph never frees the tensors that it saved: each step leaks the network's activations,
and memory grows until it is full. ``leak_cured.py`` is the same program without it.

Run: ``python examples/leak_losses_with_graph.py [STEPS]``
"""

import argparse

import torch
from torch import nn

SEED = 7
FEATURES, HIDDEN, CLASSES = 64, 512, 10
BATCH = 256


def main() -> None:
    """Read the arguments and train."""
    parser = argparse.ArgumentParser(description="Train, keeping losses with their graphs.")
    parser.add_argument("steps", nargs="?", type=int, default=200)
    options = parser.parse_args()
    torch.manual_seed(SEED)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = nn.Sequential(
        nn.Linear(FEATURES, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, CLASSES),
    ).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    measure = nn.CrossEntropyLoss()
    features = torch.randn(BATCH, FEATURES, device=device)
    labels = torch.randint(CLASSES, (BATCH,), device=device)
    held_out = torch.randn(BATCH, FEATURES, device=device)
    held_out_labels = torch.randint(CLASSES, (BATCH,), device=device)
    history = []
    for step in range(1, options.steps + 1):
        optimizer.zero_grad()
        measure(network(features), labels).backward()
        optimizer.step()
        history.append(measure(network(held_out), held_out_labels))  # fault: kept with its graph
        if step % 50 == 0:
            print(f"step {step}: held-out loss {history[-1].item():.4f}")
    print(f"best held-out loss: {min(history).item():.4f}")


if __name__ == "__main__":
    main()
