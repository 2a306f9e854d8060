"""Trains with gradients accumulated over eight small batches per step.

No leak: the sum is one set of gradients, and is freed after each step.

Run: ``python examples/leaks/clean_gradient_accumulation.py [--steps N] [--accumulate N]``
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--accumulate", type=int, default=8)
    options = parser.parse_args()

    torch.manual_seed(48)
    n = options.steps * options.accumulate * 16
    data = torch.randn(n, 32)
    loader = DataLoader(TensorDataset(data, data.norm(dim=1)), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=options.steps + 1)
    running = 0.0

    for index, (x, y) in enumerate(loader, 1):
        loss = nn.functional.l1_loss(model(x).squeeze(1), y) / options.accumulate
        loss.backward()
        running += loss.item()
        if index % options.accumulate == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)

    print(f"mean loss {running / options.steps:.4f}")


if __name__ == "__main__":
    main()
