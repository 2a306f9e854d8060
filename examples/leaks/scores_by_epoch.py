"""Trains in short epochs, and validates after each.

The problem: the history stores the scores of the whole validation set for every epoch, instead of
one number.

Run: ``python examples/leaks/scores_by_epoch.py [EPOCHS]``
"""

import sys
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

BATCHES, VALIDATION, CLASSES = 8, 6000, 20

history: defaultdict[str, list[Any]] = defaultdict(list)


@torch.no_grad()
def validate(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    """Accuracy and scores on the validation set."""
    model.eval()
    scores = model(x).softmax(-1)  # allocated here
    model.train()
    return {"accuracy": (scores.argmax(-1) == y).float().mean().item(), "scores": scores}


def main(epochs: int) -> None:
    """Train and validate."""
    torch.manual_seed(32)
    model = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    x_val, y_val = torch.randn(VALIDATION, 24), torch.randint(CLASSES, (VALIDATION,))

    for epoch in range(epochs):
        for _ in range(BATCHES):
            x, y = torch.randn(32, 24), torch.randint(CLASSES, (32,))
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        for name, value in validate(model, x_val, y_val).items():
            history[name].append(value)  # fault: the scores too
        if epoch % 10 == 0:
            print(f"epoch {epoch}: {history['accuracy'][-1]:.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
