"""Trains and measures, in each step, how a layer transforms its batch.

The problem: a new hook is registered in each step and never removed. Each retains its batch, and
runs in every later step, so steps also become slower.

Run: ``python examples/leaks/hook_every_step.py [--steps N]``
"""

import argparse
from typing import Any

import torch
from torch import Tensor, nn


class Correlation:
    """The correlation of a layer's output with its batch."""

    def __init__(self) -> None:
        self.last = 0.0

    def attach(self, layer: nn.Module, batch: Tensor) -> None:
        """Compare the layer's next output with a batch."""

        def compare(_layer: nn.Module, _inputs: Any, output: Tensor) -> None:  # noqa: ANN401
            self.last = float(output.detach().mean() * batch[0].mean())

        layer.register_forward_hook(compare)  # fault: the handle is dropped


def make_batch(step: int) -> Tensor:
    """Return a batch of noise, the same in every run."""
    return torch.randn(128, 256, generator=torch.Generator().manual_seed(step))  # allocated here


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    steps = parser.parse_args().steps

    torch.manual_seed(9)
    model = nn.Sequential(nn.Linear(256, 32), nn.SiLU(), nn.Linear(32, 4))
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
    watched = Correlation()

    for step in range(steps):
        batch = make_batch(step)
        watched.attach(model[0], batch)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.5f}, correlation {watched.last:.5f}")


if __name__ == "__main__":
    main()
