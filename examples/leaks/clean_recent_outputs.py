"""Trains, and checks the last 32 outputs for a collapse.

No leak: the deque has a maximum length, and drops the oldest output for each new one.

Run: ``python examples/leaks/clean_recent_outputs.py [STEPS]``
"""

import sys
from collections import deque

import torch
from torch import Tensor, nn


class CollapseWatch:
    """Detects that the outputs of the last steps are all alike."""

    def __init__(self, window: int = 32) -> None:
        self.recent: deque[Tensor] = deque(maxlen=window)

    def update(self, outputs: Tensor) -> float:
        """Add the newest outputs and return the spread of the recent ones."""
        self.recent.append(outputs.detach())
        return torch.stack(list(self.recent)).std(0).mean().item()


def main(steps: int) -> None:
    """Train."""
    torch.manual_seed(42)
    model = nn.Sequential(nn.Linear(50, 100), nn.Mish(), nn.Linear(100, 100))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    watch = CollapseWatch()
    for step in range(steps):
        outputs = model(torch.randn(150, 50))
        loss = (outputs.std(0) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        spread = watch.update(outputs)
        if step % 50 == 0:
            print(f"step {step}: spread {spread:.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
