"""Runs a model with convolutions that was saved for a GPU.

The problem: it is in float16, for which the CPU has no fast convolution.

The fix (``--cured``): it is converted to float32.

Run: ``python examples/host/half_convolutions.py [--cured]``
"""

import argparse
from collections.abc import Callable

import torch
from torch import nn

SEED, STEPS = 7, 20
CHANNELS, SIZE, BATCH = 16, 24, 4


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return the step of inference."""
    torch.manual_seed(SEED)
    dtype = torch.float32 if cured else torch.float16
    network = nn.Sequential(
        nn.Conv2d(3, CHANNELS, 3, padding=1), nn.ReLU(), nn.Conv2d(CHANNELS, CHANNELS, 3)
    )
    network = network.to(dtype).eval()
    images = torch.randn(BATCH, 3, SIZE, SIZE).to(dtype)

    @torch.inference_mode()
    def step() -> None:
        network(images)  # fault: in float16

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run a model with convolutions.")
    parser.add_argument("--cured", action="store_true")
    infer = prepare(cured=parser.parse_args().cured)
    for _ in range(STEPS):
        infer()
