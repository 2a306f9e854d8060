"""Trains, and logs each step's gradient in case of an error.

The problem: a log record retains its arguments until it is formatted, and the handler stores every
record until they are printed, which does not happen.

Run: ``python examples/leaks/log_records.py [--steps N] [--verbose]``
"""

import argparse
import logging

import torch
from torch import Tensor, nn

log = logging.getLogger("train")


class BlackBox(logging.Handler):
    """Stores log records, and prints them after a crash."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Store a record."""
        self.records.append(record)  # fault: with its tensor arguments

    def show(self) -> None:
        """Print the last few."""
        for record in self.records[-3:]:
            print(record.getMessage())


def gradient_of(model: nn.Module) -> Tensor:
    """All gradients of a model in one row."""
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(gradients)  # allocated here


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()

    torch.manual_seed(24)
    log.setLevel(logging.DEBUG)
    log.propagate = options.verbose
    log.addHandler(BlackBox())
    model = nn.Sequential(
        nn.Linear(90, 180), nn.ReLU(), nn.Linear(180, 90), nn.ReLU(), nn.Linear(90, 1)
    )
    optimizer = torch.optim.Adamax(model.parameters())

    for step in range(options.steps):
        x = torch.rand(32, 90)
        loss = (model(x) - x.max(1, keepdim=True).values).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.debug("step %d: loss %.4f, gradient %s", step, loss.item(), gradient_of(model))

    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
