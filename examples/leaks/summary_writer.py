"""Trains, and logs gradients for a dashboard that is written at the end.

The problem: the writer stores the gradients themselves until ``close``, although their histograms
would be enough.

Run: ``python examples/leaks/summary_writer.py [--steps N] [--log-every N]``
"""

import argparse
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Summary(NamedTuple):
    """One value of one step."""

    tag: str
    step: int
    value: Tensor


class Writer:
    """Writes all summaries when it is closed."""

    def __init__(self, folder: str) -> None:
        self._path = Path(folder) / "events.txt"
        self._lock = threading.Lock()
        self._pending: dict[str, list[Summary]] = {}

    def add_histogram(self, tag: str, values: Tensor, step: int) -> None:
        """Store the values of one step."""
        with self._lock:
            noted = self._pending.setdefault(tag, [])
            noted.append(Summary(tag, step, values))  # fault: values, not their histogram

    def close(self) -> None:
        """Write them."""
        with self._lock, self._path.open("w") as out:
            for tag, noted in self._pending.items():
                for summary in noted:
                    counts = torch.histc(summary.value, 20)
                    print(tag, summary.step, *counts.int().tolist(), file=out)


def main() -> None:
    """Train with a dashboard."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--log-every", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(33)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)

    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(folder)
        for step in range(args.steps):
            x = torch.randn(48, 64)
            opt.zero_grad(set_to_none=True)
            net(x).square().mean().backward()  # allocated here
            if step % args.log_every == 0:
                for name, parameter in net.named_parameters():
                    if parameter.grad is not None:
                        writer.add_histogram(f"grad/{name}", parameter.grad, step)
            opt.step()
        writer.close()


if __name__ == "__main__":
    main()
