"""Trains a network and measures its accuracy on held-out data in every step.

The problem: ``network.eval()`` does not turn gradients off. Each evaluation builds an autograd
graph that no backward pass uses, and retains all activations until the predictions are computed.
``evaluation_cured.py`` is the same program without it.

Run: ``python examples/evaluation_with_graph.py [STEPS]``
"""

import argparse

import torch
from torch import nn

SEED = 7
FEATURES, HIDDEN, CLASSES = 64, 512, 10
BATCH, HELD_OUT = 128, 1024


def answers(network: nn.Module, features: torch.Tensor) -> torch.Tensor:
    """The class that the network predicts for each row."""
    return network(features).argmax(dim=1)  # fault: builds a graph


def main() -> None:
    """Read the arguments and train."""
    parser = argparse.ArgumentParser(description="Train, evaluating with gradients on.")
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
    held_out = torch.randn(HELD_OUT, FEATURES, device=device)
    held_out_labels = torch.randint(CLASSES, (HELD_OUT,), device=device)
    right = torch.zeros((), dtype=torch.long, device=device)
    for _ in range(options.steps):
        network.train()
        optimizer.zero_grad()
        measure(network(features), labels).backward()
        optimizer.step()
        network.eval()
        right += (answers(network, held_out) == held_out_labels).sum()
    print(f"right: {right.item() / options.steps / HELD_OUT:.1%}")


if __name__ == "__main__":
    main()
