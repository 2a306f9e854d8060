"""Trains a network of many small layers.

The problem: anomaly detection is still on, and tests each gradient for values that are not a
number.

The fix (``--cured``): it is off.

Run: ``python examples/host/anomaly_detection.py [--cured]``
"""

import argparse
from collections.abc import Callable

import torch
from torch import nn

SEED, STEPS = 7, 200
LAYERS, WIDTH, BATCH = 8, 32, 8


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return the step of training."""
    torch.manual_seed(SEED)
    network = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    x, y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(network(x), y)
        with torch.autograd.set_detect_anomaly(not cured, check_nan=True):
            loss.backward()  # fault: each gradient is tested
        optimizer.step()

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train with anomaly detection.")
    parser.add_argument("--cured", action="store_true")
    train = prepare(cured=parser.parse_args().cured)
    for _ in range(STEPS):
        train()
