"""Trains with a workspace that is reallocated when a batch does not fit into it.

No leak: the workspace is as large as the largest batch so far, and there is one at a time.

Run: ``python examples/leaks/clean_workspace_grows.py [--steps N]``
"""

import argparse

import torch
from torch import Tensor, nn


class Workspace:
    """Memory that is reused."""

    def __init__(self) -> None:
        self.buffer = torch.empty(0)
        self.times_grown = 0

    def take(self, rows: int, columns: int) -> Tensor:
        """Return a buffer for that many numbers."""
        if self.buffer.numel() < rows * columns:
            self.buffer = torch.empty(rows * columns)
            self.times_grown += 1
        return self.buffer[: rows * columns].view(rows, columns)


def main() -> None:
    """Train on batches of growing, then of random size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps

    torch.manual_seed(46)
    model = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 48))
    optimizer = torch.optim.Adadelta(model.parameters())
    workspace = Workspace()

    for step in range(steps):
        rows = min(100 + 20 * step, int(torch.randint(900, 1500, ())))
        x = torch.randn(rows, 48)
        noisy = workspace.take(rows, 48)
        torch.mul(x, 1 + 0.1 * torch.rand(()), out=noisy)
        loss = nn.functional.mse_loss(model(noisy), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    print(f"the workspace grew {workspace.times_grown} times")


if __name__ == "__main__":
    main()
