"""Trains a small network on signals that NumPy sorts first.

The problem: they are sorted between the steps, and a GPU waits for it.

The fix (``--cured``): they are sorted once, before the first step.

Run: ``python examples/host/augmented_in_step.py [--cured]``
"""

import argparse
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

SEED, STEPS = 7, 200
WIDTH, BATCH = 8192, 256
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def in_order(signals: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return each signal sorted, without its mean."""
    # Stable, because NumPy's other sort takes a twentieth of the time where there is AVX-512.
    ordered = np.sort(signals, axis=1, kind="stable")  # fault: while the GPU waits
    return ordered - ordered.mean(axis=1, keepdims=True)


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return the step of training."""
    torch.manual_seed(SEED)
    network = nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 1)).to(DEVICE)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    signals = np.random.default_rng(SEED).normal(size=(BATCH, WIDTH)).astype(np.float32)
    y = torch.randn(BATCH, 1, device=DEVICE)
    before = torch.from_numpy(in_order(signals)).to(DEVICE)

    def step() -> None:
        x = before if cured else torch.from_numpy(in_order(signals)).to(DEVICE)
        optimizer.zero_grad()
        nn.functional.mse_loss(network(x), y).backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on sorted signals.")
    parser.add_argument("--cured", action="store_true")
    train = prepare(cured=parser.parse_args().cured)
    for _ in range(STEPS):
        train()
