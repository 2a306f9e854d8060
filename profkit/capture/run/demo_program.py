"""A small training program with deliberate faults: two, and one more on a GPU.

`profkit demo` runs it. Fix a fault, run it again, and see how the report changes:

    python profkit_demo.py
"""

import sys
from collections.abc import Sized

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import profkit


class Pictures(Dataset[tuple[Tensor, int]], Sized):
    """Pictures that are generated again on each access."""

    def __len__(self) -> int:
        return 32 * 16

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        raw = np.random.default_rng(index).random((160, 160))
        smooth = np.fft.ifft2(np.fft.fft2(raw)).real  # fault 1: slow work while the model waits
        return torch.from_numpy(smooth[None, :28, :28].astype(np.float32)), index % 10


def main(folder: str | None = None) -> str | None:
    """Train a few steps and return the path of the trace."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    features = nn.Sequential(nn.Conv2d(1, 16, 3, stride=2), nn.ReLU(), nn.Flatten())
    model = nn.Sequential(features, nn.Linear(16 * 13 * 13, 10)).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    held_out = torch.rand(64, 1, 28, 28, device=device)
    answers = torch.arange(64, device=device) % 10
    train_losses: list[float] = []
    test_losses: list[Tensor] = []

    steps = profkit.steps(DataLoader(Pictures(), batch_size=32), "demo", dir=folder)
    for pictures, labels in steps:
        loss = criterion(model(pictures.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        train_losses.append(loss.item())  # fault 2: on a GPU, waits for it in every step
        test_losses.append(criterion(model(held_out), answers))  # fault 3: keeps every graph alive
    return steps.path


if __name__ == "__main__":
    main(*sys.argv[1:2])
