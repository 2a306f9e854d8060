"""Trains on images that have to be decompressed.

The problem: the loader has no workers, so the training process decompresses each batch itself
between two steps, and the device is idle meanwhile.

The fix (``--cured``): workers decompress batches while the device computes, if there are cores.

Run: ``python examples/gpu/starved_loader.py [--cured] [--steps N] [--device cuda]``
"""

import os
import zlib
from collections.abc import Sequence

import measured
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

PICTURES = 32
BATCH = 64
SIDE = 96
CHANNELS = 64
LAYERS = 8
MOST_WORKERS = 8


class PackedPictures(Dataset[tuple[Tensor, int]]):
    """Images that are stored compressed, like files on a disk.

    Args:
        n: Length of the data set; the same few images repeat.
        side: Their height and width.
    """

    def __init__(self, n: int, side: int) -> None:
        self.n, self.side = n, side
        pictures = torch.randint(32, (PICTURES, 3, side, side), dtype=torch.uint8)
        self.packed = [zlib.compress(picture.numpy().tobytes(), 1) for picture in pictures]

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        raw = bytearray(zlib.decompress(self.packed[index % PICTURES]))
        picture = torch.frombuffer(raw, dtype=torch.uint8).view(3, self.side, self.side)
        return picture, index % measured.KINDS


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=80, arguments=arguments)
    rows, side = measured.scaled(options, BATCH, 2), measured.scaled(options, SIDE)
    channels = measured.scaled(options, CHANNELS)
    parts: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1), nn.ReLU()]
    for _ in range(LAYERS):
        parts += [nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()]
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, measured.KINDS)]
    network = nn.Sequential(*parts).to(options.device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    workers = max(1, min(MOST_WORKERS, (os.cpu_count() or 1) - 2)) if options.cured else 0
    loader = DataLoader(
        PackedPictures(rows * measured.count(options), side),
        batch_size=rows,
        num_workers=workers,
        pin_memory=measured.on_cuda(options),
    )
    loss = torch.zeros(())
    batches = zip(measured.steps(options), loader, strict=False)
    for _, (pictures, y) in batches:  # fault: the next batch is decompressed here
        x = pictures.to(options.device, non_blocking=True).float() / 32
        kinds = y.to(options.device, non_blocking=True)
        loss = nn.functional.cross_entropy(network(x), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
