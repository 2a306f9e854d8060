"""Trains, and stores the last two checkpoints in memory, to restore one when the loss diverges.

No leak: the third checkpoint replaces the first.

Run: ``python examples/leaks/clean_last_two_checkpoints.py [--steps N] [--every N]``
"""

import argparse
import io

import torch
from torch import nn


def pack(model: nn.Module, optimizer: torch.optim.Optimizer) -> bytes:
    """Return a checkpoint."""
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, buffer)
    return buffer.getvalue()


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--every", type=int, default=8)
    options = parser.parse_args()

    torch.manual_seed(51)
    model = nn.Sequential(nn.Linear(80, 300), nn.SELU(), nn.Linear(300, 80))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    checkpoints: list[bytes] = []

    for step in range(1, options.steps + 1):
        x = torch.randn(64, 80)
        loss = nn.functional.mse_loss(model(x), x.sort(1).values)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % options.every == 0:
            checkpoints.append(pack(model, optimizer))
            del checkpoints[:-2]

    print(f"loss {loss.item():.4f}, {len(checkpoints)} checkpoints of {len(checkpoints[-1])} bytes")


if __name__ == "__main__":
    main()
