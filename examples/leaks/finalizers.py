"""Lends buffers of a pool to whoever asks, and takes them back when the borrower is gone.

The fault: the callback that takes a buffer back is given the borrower's own mask, and waits for
the end of the trainer, which lives as long as the program.

Run: ``python examples/leaks/finalizers.py [STEPS]``
"""

import sys
import weakref

import torch
from torch import nn


class Trainer:
    """Trains with noise that is dropped out."""

    def __init__(self) -> None:
        self.net = nn.Linear(200, 50)
        self.sgd = torch.optim.SGD(self.net.parameters(), lr=0.02)
        self.given_back = 0

    def mask(self) -> torch.Tensor:
        """A mask for one batch, given back at the end."""
        mask = torch.rand(120, 200).gt(0.1).float()  # made here
        weakref.finalize(self, give_back, mask)  # fault: the trainer's end, not the mask's
        return mask

    def step(self) -> float:
        """One step."""
        self.sgd.zero_grad()
        loss = self.net(torch.randn(120, 200) * self.mask()).pow(2).mean()
        loss.backward()
        self.sgd.step()
        return loss.item()


def give_back(mask: torch.Tensor) -> None:
    """Take a mask back into the pool."""
    mask.zero_()


def main() -> None:
    """Train."""
    torch.manual_seed(39)
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 175
    trainer = Trainer()
    for number in range(steps):
        loss = trainer.step()
        if number % 50 == 0:
            print(number, round(loss, 4))


if __name__ == "__main__":
    main()
