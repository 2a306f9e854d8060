"""Trains with persistent workers that cache the images that they decoded last.

Run: ``python examples/leaks/clean_workers_fill_caches.py --steps 300``.
"""

import argparse
import functools

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

BATCH = 16


class Pictures(Dataset[Tensor]):
    """Images whose decoding takes time; each worker caches some of them."""

    def __init__(self, n: int) -> None:
        # One tensor: reading Python objects would copy their pages in the worker.
        self.seeds = torch.arange(n)
        self.decoded = functools.lru_cache(maxsize=48)(self._decode)

    def __len__(self) -> int:
        return len(self.seeds)

    def __getitem__(self, place: int) -> Tensor:
        return self.decoded(place) / 255

    def _decode(self, place: int) -> Tensor:
        generator = torch.Generator().manual_seed(int(self.seeds[place]))
        return torch.randint(0, 256, (3, 32, 32), generator=generator, dtype=torch.uint8)


def main() -> None:
    """Learn to reconstruct images, in several passes over few of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    n_steps = parser.parse_args().steps

    torch.set_num_threads(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 8), nn.Linear(8, 3 * 32 * 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(
        Pictures(n_steps * BATCH // 3),
        batch_size=BATCH,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
    )

    for _ in range(3):
        for pictures in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(pictures), pictures.flatten(1)).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
