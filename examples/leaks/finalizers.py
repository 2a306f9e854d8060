"""Takes buffers from a pool, and returns them when their user is freed.

The problem: the callback that returns a buffer has the mask as its argument, and is called at
the end of the trainer, which lives as long as the program.

Run: ``python examples/leaks/finalizers.py [STEPS]``
"""

import sys
import weakref

import torch
from torch import nn


class Trainer:
    """Trains with dropout noise."""

    def __init__(self) -> None:
        self.net = nn.Linear(200, 50)
        self.sgd = torch.optim.SGD(self.net.parameters(), lr=0.02)
        self.given_back = 0

    def mask(self) -> torch.Tensor:
        """Return a mask for one batch, returned at the end."""
        mask = torch.rand(120, 200).gt(0.1).float()  # allocated here
        weakref.finalize(self, give_back, mask)  # fault: the trainer's end, not the mask's
        return mask

    def step(self) -> float:
        """Do one step."""
        self.sgd.zero_grad()
        loss = self.net(torch.randn(120, 200) * self.mask()).pow(2).mean()
        loss.backward()
        self.sgd.step()
        return loss.item()


def give_back(mask: torch.Tensor) -> None:
    """Return a mask to the pool."""
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
