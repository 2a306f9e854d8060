"""Trains in epochs, and computes a metric over all outputs at the end of each.

No leak: the list of outputs grows during an epoch and is cleared at its end.

Run: ``python examples/leaks/clean_epoch_outputs.py [--epochs N] [--batches N]``
"""

import argparse

import torch
from torch import Tensor, nn


class LitClassifier(nn.Module):
    """A module in the style of Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(30, 90), nn.ReLU(), nn.Linear(90, 60))
        self.training_step_outputs: list[Tensor] = []

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the loss of a batch."""
        x, y = batch
        scores = self.layers(x)
        self.training_step_outputs.append(scores.detach())
        return nn.functional.cross_entropy(scores, y)

    def on_train_epoch_end(self) -> float:
        """Print the model's mean confidence in this epoch."""
        sure = torch.cat(self.training_step_outputs).softmax(1).max(1).values.mean().item()
        self.training_step_outputs.clear()
        return sure


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batches", type=int, default=25)
    options = parser.parse_args()

    torch.manual_seed(52)
    module = LitClassifier()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)

    for epoch in range(options.epochs):
        for _ in range(options.batches):
            x = torch.randn(200, 30)
            loss = module.training_step((x, x.argmax(1)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: sure to {module.on_train_epoch_end():.2f}")


if __name__ == "__main__":
    main()
