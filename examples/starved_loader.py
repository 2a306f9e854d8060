"""Trains a small convolutional network on images that are decoded in the training process.

The problem: the loader has no workers. Each image is decompressed, smoothed, cropped and flipped by
the process that trains, so training waits for its data in every step.
With ``--workers 2``, other processes do it, if there are cores to spare;
``starved_loader_cured.py`` does most of it once, before training.

Run: ``python examples/starved_loader.py [STEPS] [--workers N]``
"""

import argparse
import time
import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SEED = 7
SIDE, CUT, CLASSES = 192, 112, 10
BATCH = 8
PICTURES = 64


class PackedPictures(Dataset[tuple[torch.Tensor, int]]):
    """Images that are stored compressed, like files, and decoded one at a time.

    Args:
        n: Length of the data set; the same few images repeat.
    """

    def __init__(self, n: int) -> None:
        chance = np.random.default_rng(SEED)
        gradient = np.linspace(0, 200, SIDE)[:, None, None]
        self.n = n
        self.packed = [
            zlib.compress(
                (gradient + chance.integers(0, 56, (SIDE, SIDE, 3))).astype(np.uint8).tobytes()
            )
            for _ in range(PICTURES)
        ]

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        chance = np.random.default_rng(index)
        raw = zlib.decompress(self.packed[index % PICTURES])
        picture = np.frombuffer(raw, np.uint8).reshape(SIDE, SIDE, 3).astype(np.float32)
        shifted = (
            np.roll(picture, (rows, columns), (0, 1)) for rows in (0, 1) for columns in (0, 1)
        )
        smooth = sum(shifted, np.zeros_like(picture)) / 4
        top, left = chance.integers(0, SIDE - CUT, 2)
        cut = smooth[top : top + CUT, left : left + CUT]
        mirrored = cut[:, ::-1] if chance.integers(2) else cut
        return torch.from_numpy(mirrored.transpose(2, 0, 1).astype(np.uint8)), index % CLASSES


def loader_of(steps: int, workers: int) -> DataLoader[tuple[torch.Tensor, int]]:
    """Batches for a number of steps, from a number of worker processes."""
    return DataLoader(PackedPictures(steps * BATCH), batch_size=BATCH, num_workers=workers)


def main() -> None:
    """Read the arguments and train."""
    parser = argparse.ArgumentParser(
        description="Train, making each batch in the training process."
    )
    parser.add_argument("steps", nargs="?", type=int, default=60)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # one core trains; the others load data
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = nn.Sequential(
        nn.Conv2d(3, 48, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(48, 96, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(96, CLASSES),
    ).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    measure = nn.CrossEntropyLoss()
    begin = time.perf_counter()
    for pictures, labels in loader_of(options.steps, options.workers):  # fault: made here
        optimizer.zero_grad()
        loss = measure(network(pictures.to(device) / 255), labels.to(device))
        loss.backward()
        optimizer.step()
    seconds = time.perf_counter() - begin
    print(f"{options.steps} steps, {seconds / options.steps * 1000:.0f} ms each")


if __name__ == "__main__":
    main()
