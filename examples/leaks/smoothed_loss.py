"""Trains with a trainer object that shows a smoothed loss, as progress bars do.

The problem: the smoothed loss is a tensor computed from the previous one, so its graph has all
earlier ones. The trainer has one attribute, whose graph grows by one step's nodes in every step.

Run: ``python examples/leaks/smoothed_loss.py [STEPS]``
"""

import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn


class Trainer:
    """Trains a classifier and shows its progress."""

    def __init__(self, model: nn.Module, *, beta: float = 0.98) -> None:
        self.model = model
        self.beta = beta
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 100)
        self.smooth_loss: Tensor | None = None

    def update_bar(self, loss: Tensor) -> None:
        """Include a new loss in the one that is shown."""
        if self.smooth_loss is None:
            self.smooth_loss = loss
        self.smooth_loss = self.beta * self.smooth_loss + (1 - self.beta) * loss  # fault: attached

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the loss of one batch."""
        inputs, targets = batch
        return nn.functional.cross_entropy(self.model(inputs), targets)  # allocated here

    def fit(self, batches: Iterator[tuple[Tensor, Tensor]]) -> None:
        """Train on all of the batches."""
        for step, batch in enumerate(batches):
            loss = self.training_step(batch)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            self.update_bar(loss)
            if step % 50 == 0:
                print(f"{step:4d}  loss {self.smooth_loss:.3f}")


def spirals(steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Points on two spirals, and the spiral of each."""
    for _ in range(steps):
        side = torch.randint(2, (200,))
        angle = torch.rand(200) * 9
        turned = angle + side * torch.pi
        points = torch.stack([turned.cos() * angle, turned.sin() * angle], 1)
        yield points + 0.1 * torch.randn(200, 2), side


if __name__ == "__main__":
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(2, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 2))
    Trainer(net).fit(spirals(int(sys.argv[1]) if len(sys.argv) > 1 else 250))
