"""Trains and stores each step's loss as a detached tensor, so that no step waits for the device.

No leak: a detached loss is one number without a graph. ``losses_of_whole_size.py`` is the
exception.

Run: ``python examples/leaks/clean_losses_detached.py [--steps N]``
"""

import argparse

import torch
from torch import nn


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps

    torch.manual_seed(41)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 64))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    history = []

    for _ in range(steps):
        x = torch.randn(128, 64, device=device)
        loss = nn.functional.l1_loss(model(x), x.cumsum(1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        history.append(loss.detach())

    print(f"best loss {torch.stack(history).min().item():.4f}")


if __name__ == "__main__":
    main()
