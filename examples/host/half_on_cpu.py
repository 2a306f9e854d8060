"""Trains a network under ``torch.autocast`` on a CPU.

The problem: the CPU has no arithmetic for bfloat16, to which the products are cast.

The fix (``--cured``): the network is trained in float32.

Run: ``python examples/host/half_on_cpu.py [--cured]``
"""

import argparse
from collections.abc import Callable

import torch
from torch import nn

SEED, STEPS = 5, 20
WIDTH, ROWS = 512, 128


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return what runs a step."""
    torch.manual_seed(SEED)
    network = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    x = torch.randn(ROWS, WIDTH)

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not cured):
            loss = (network(x) - x).pow(2).mean()  # fault: in bfloat16
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a network.")
    parser.add_argument("--cured", action="store_true")
    run_step = prepare(cured=parser.parse_args().cured)
    for _ in range(STEPS):
        run_step()
