"""Fits a curve with L-BFGS, which stores the directions of its last 25 steps.

No leak: the optimizer's state grows for 25 steps and is full then.

Run: ``python examples/leaks/clean_lbfgs.py [STEPS]``
"""

import sys

import torch
from torch import Tensor, nn


def main(steps: int) -> None:
    """Fit."""
    torch.manual_seed(60)
    x = torch.linspace(-3, 3, 200).unsqueeze(1)
    y = torch.sin(2 * x) + 0.3 * x
    model = nn.Sequential(
        nn.Linear(1, 100), nn.Tanh(), nn.Linear(100, 100), nn.Tanh(), nn.Linear(100, 1)
    )
    optimizer = torch.optim.LBFGS(
        model.parameters(),
        lr=0.05,
        max_iter=2,
        history_size=25,
        tolerance_grad=0,
        tolerance_change=0,
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for step in range(steps):
        loss = optimizer.step(closure)
        if step % 40 == 0:
            print(f"step {step}: {float(loss):.5f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 150)
