"""Trains on random patches that the workers of a loader cut.

The problem: the data set caches each patch by a position that never repeats, and each worker has
a cache of its own.

Run: ``python examples/leaks/patches_kept_in_workers.py [--steps N]``
"""

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

BATCH = 32
SIDE = 32


class Patches(Dataset[Tensor]):
    """Patches of one large picture."""

    def __init__(self, n: int) -> None:
        self.picture = torch.randn(512, 512)
        self.cut: dict[tuple[int, int, int], Tensor] = {}
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Tensor:
        """Cut a patch, or return the one at the same position."""
        top, left = torch.randint(512 - SIDE, (2,)).tolist()
        key = (top, left, index % 8)
        if key not in self.cut:
            patch = self.picture[top : top + SIDE, left : left + SIDE]
            self.cut[key] = patch.contiguous()  # fault: hardly any of them is used again
        return self.cut[key]


def main() -> None:
    """Train for some steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    torch.manual_seed(75)
    model = nn.Linear(SIDE * SIDE, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    dataset = Patches(BATCH * parser.parse_args().steps)
    for patches in DataLoader(dataset, batch_size=BATCH, num_workers=2):
        optimizer.zero_grad()
        loss = model(patches.flatten(1)).pow(2).mean()
        loss.backward()
        optimizer.step()

    print(f"{loss.item():.3f}")


if __name__ == "__main__":
    main()
