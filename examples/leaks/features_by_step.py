"""Trains a model that stores the features of each step, to compare them with later ones.

The problem: the key of the dictionary is the step's number, so every step adds an entry, and only
the previous step's entry is ever used.

Run: ``python examples/leaks/features_by_step.py [STEPS]``
"""

import sys

import torch
from torch import Tensor, nn


class Contrast(nn.Module):
    """Learns features that change slowly from one step to the next."""

    def __init__(self, features: int = 64) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, features))
        self.bank: dict[int, Tensor] = {}

    def forward(self, x: Tensor, step: int) -> Tensor:
        """Return the loss against the features of the previous step."""
        features = nn.functional.normalize(self.encoder(x), dim=1)  # allocated here
        self.bank[step] = features.detach()  # fault: one more entry in each step
        before = self.bank.get(step - 1, torch.zeros_like(features))
        return (features - before).pow(2).mean() - features.var(0).mean()


def main(steps: int) -> None:
    """Train."""
    torch.manual_seed(5)
    model = Contrast()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    drift = torch.randn(512, 20)
    for step in range(steps):
        drift = drift + 0.01 * torch.randn_like(drift)
        loss = model(drift, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f} after {steps} steps")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 120)
