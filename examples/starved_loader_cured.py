"""Trains a small convolutional network on images that are decoded before training.

The fixed version of ``starved_loader.py`` if memory allows it: what is the same in every epoch is
done once, ahead. The rest, cropping and flipping, is too short to need workers.

Run: ``python examples/starved_loader_cured.py [STEPS]``
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


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Images that are decoded and smoothed once, and cropped and flipped on each access.

    Args:
        n: Length of the data set; the same few images repeat.
    """

    def __init__(self, n: int) -> None:
        chance = np.random.default_rng(SEED)
        gradient = np.linspace(0, 200, SIDE)[:, None, None]
        self.n = n
        self.ready = []
        for _ in range(PICTURES):
            noisy = gradient + chance.integers(0, 56, (SIDE, SIDE, 3))
            packed = zlib.compress(noisy.astype(np.uint8).tobytes())
            self.ready.append(self.unpack(packed))

    @staticmethod
    def unpack(packed: bytes) -> np.ndarray:
        """Decompress an image and smooth it. Shape ``(3, SIDE, SIDE)``."""
        picture = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(SIDE, SIDE, 3)
        picture = picture.astype(np.float32)
        shifted = (np.roll(picture, (row, column), (0, 1)) for row in (0, 1) for column in (0, 1))
        smooth = (sum(shifted, np.zeros_like(picture)) / 4).astype(np.uint8)
        return np.ascontiguousarray(smooth.transpose(2, 0, 1))

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        chance = np.random.default_rng(index)
        top, left = chance.integers(0, SIDE - CUT, 2)
        cut = self.ready[index % PICTURES][:, top : top + CUT, left : left + CUT]
        mirrored = cut[:, :, ::-1] if chance.integers(2) else cut
        return torch.from_numpy(mirrored.copy()), index % CLASSES


def loader_of(steps: int) -> DataLoader[tuple[torch.Tensor, int]]:
    """Batches for a number of steps."""
    return DataLoader(Pictures(steps * BATCH), batch_size=BATCH)


def main() -> None:
    """Read the arguments and train."""
    parser = argparse.ArgumentParser(description="Train, on pictures unpacked ahead.")
    parser.add_argument("steps", nargs="?", type=int, default=60)
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
    for pictures, labels in loader_of(options.steps):
        optimizer.zero_grad()
        loss = measure(network(pictures.to(device) / 255), labels.to(device))
        loss.backward()
        optimizer.step()
    seconds = time.perf_counter() - begin
    print(f"{options.steps} steps, {seconds / options.steps * 1000:.0f} ms each")


if __name__ == "__main__":
    main()
