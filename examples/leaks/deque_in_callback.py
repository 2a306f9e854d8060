"""Monitors the spread of embeddings over a window of the last steps.

The problem: the window has no ``maxlen``; the last fifty entries are used, and all are stored.

Run: ``python examples/leaks/deque_in_callback.py [--steps N]``
"""

import argparse
from collections import deque
from itertools import islice

import torch
from torch import Tensor, nn


class Callback:
    """Is called by the loop."""

    def on_batch_end(self, step: int, embedding: Tensor) -> None:
        """Is called after a batch."""


class SpreadWatcher(Callback):
    """Warns when embeddings collapse into a point."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.recent: deque[Tensor] = deque()  # fault: without maxlen=window

    def on_batch_end(self, step: int, embedding: Tensor) -> None:
        """Add the batch, and check the window."""
        self.recent.append(embedding.detach().clone())  # allocated here
        last = list(islice(reversed(self.recent), self.window))
        spread = torch.stack([output.std() for output in last]).mean().item()
        if step % 50 == 0:
            print(f"step {step}: spread {spread:.3f}")


class Loop:
    """Calls its callbacks."""

    def __init__(self, *callbacks: Callback) -> None:
        self.callbacks = callbacks

    def run(self, steps: int) -> None:
        """Train."""
        embed = nn.Sequential(nn.Linear(30, 128), nn.ReLU(), nn.Linear(128, 192))
        adam = torch.optim.Adam(embed.parameters(), lr=1e-3)
        for step in range(steps):
            left, right = embed(torch.randn(32, 30)), embed(torch.randn(32, 30))
            loss = (left - right).square().mean() - left.var(0).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            for callback in self.callbacks:
                callback.on_batch_end(step, left)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=260)
    torch.manual_seed(34)
    Loop(SpreadWatcher(50), Callback()).run(parser.parse_args().steps)
