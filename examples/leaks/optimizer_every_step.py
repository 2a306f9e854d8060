"""Adapts a network to one user after another, each with a new optimizer.

The problem: the optimizers are stored to compare them later. Adam's two moments are each as large
as the network, so every optimizer retains twice the network.

Run: ``python examples/leaks/optimizer_every_step.py [USERS]``
"""

import sys

import torch
from torch import nn


class Personalizer:
    """Fits one network to each user."""

    def __init__(self) -> None:
        self.network = nn.Sequential(nn.Linear(60, 200), nn.ReLU(), nn.Linear(200, 5))
        self.optimizers: list[torch.optim.Optimizer] = []

    def fit(self, clicks: torch.Tensor, liked: torch.Tensor) -> float:
        """Do one step for one user, and return the loss before it."""
        optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-3)
        loss = nn.functional.cross_entropy(self.network(clicks), liked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # allocated here
        self.optimizers.append(optimizer)  # fault: with its moments
        return loss.item()


def main(users: int) -> None:
    """Fit all users."""
    torch.manual_seed(19)
    app = Personalizer()
    losses = [app.fit(torch.randn(50, 60), torch.randint(5, (50,))) for _ in range(users)]
    print(f"{users} users, mean loss {sum(losses) / users:.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 130)
