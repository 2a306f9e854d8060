"""Trains on random crops of a few images, which its data set caches.

The problem: the key of the cache is an image and the position of the crop. There are far more
positions than images, so almost every crop is new, in the last epoch as in the first.

Run: ``python examples/leaks/crops_cached.py [--epochs N]``
"""

import argparse
import random

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

PICTURES, SIDE, CUT = 160, 96, 48


class Crops(Dataset[tuple[Tensor, int]]):
    """Crops of images that take long to compute."""

    def __init__(self) -> None:
        self.chance = random.Random(25)  # noqa: S311  (crops, not secrets)
        self.cache: dict[tuple[int, int, int], Tensor] = {}

    def __len__(self) -> int:
        return PICTURES

    def picture(self, index: int) -> Tensor:
        """Return an image, as if read from a disk."""
        ramp = torch.linspace(0, 1 + index % 3, SIDE)
        return torch.stack([ramp.outer(ramp), ramp.expand(SIDE, SIDE), ramp.flip(0).outer(ramp)])

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        top, left = self.chance.randrange(SIDE - CUT), self.chance.randrange(SIDE - CUT)
        key = (index, top, left)
        if key not in self.cache:
            crop = self.picture(index)[:, top : top + CUT, left : left + CUT]
            self.cache[key] = crop.contiguous()  # fault: allocated here, and never used again
        return self.cache[key], index % 3


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description="Train on cached random crops.")
    parser.add_argument("--epochs", type=int, default=6)
    epochs = parser.parse_args().epochs

    torch.manual_seed(25)
    loader = DataLoader(Crops(), batch_size=8, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 3),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    for epoch in range(epochs):
        right = 0
        for crops, classes in loader:
            scores = model(crops)
            loss = nn.functional.cross_entropy(scores, classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += (scores.argmax(1) == classes).sum().item()
        print(f"epoch {epoch}: {right / PICTURES:.0%} right")


if __name__ == "__main__":
    main()
