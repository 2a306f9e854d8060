"""Trains a classifier, and measures its accuracy once an epoch.

The problem: the metric stores the predictions and the classes of each batch, and is never reset.

Run: ``python examples/leaks/metric_without_reset.py [--epochs N]``
"""

import argparse

import torch
from torch import Tensor, nn

BATCH = 1024
CLASSES = 16


class Accuracy:
    """The share of right predictions."""

    def __init__(self) -> None:
        self.predictions: list[Tensor] = []
        self.classes: list[Tensor] = []

    def update(self, logits: Tensor, classes: Tensor) -> None:
        """Add a batch."""
        self.predictions.append(logits.detach().softmax(1))  # allocated here
        self.classes.append(classes)

    def compute(self) -> float:
        """Compute the share over all batches."""
        right = torch.cat(self.predictions).argmax(1) == torch.cat(self.classes)
        return right.float().mean().item()

    def reset(self) -> None:
        """Begin anew."""
        self.predictions.clear()
        self.classes.clear()


def main() -> None:
    """Train for some epochs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    torch.manual_seed(53)
    model = nn.Linear(32, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accuracy = Accuracy()

    for _ in range(parser.parse_args().epochs):
        for _ in range(16):
            x, classes = torch.randn(BATCH, 32), torch.randint(CLASSES, (BATCH,))  # allocated here
            logits = model(x)
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits, classes).backward()
            optimizer.step()
            accuracy.update(logits, classes)
        print(f"{accuracy.compute():.3f}")  # fault: and no reset


if __name__ == "__main__":
    main()
