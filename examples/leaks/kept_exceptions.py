"""Trains on data with bad batches: skips each of them, and lists the errors at the end.

The problem: a stored exception retains its traceback, with the frames that it passed through and
their local variables: the batch, the scores and the loss with its whole graph.

Run: ``python examples/leaks/kept_exceptions.py [--steps N]``
"""

import argparse
import math

import torch
from torch import Tensor, nn


class BadBatchError(Exception):
    """A batch that must be skipped."""


def loss_of(model: nn.Module, batch: Tensor, target: Tensor) -> Tensor:
    """Return the loss of a batch.

    Raises:
        BadBatchError: If it is not a number.
    """
    scores = model(batch)  # allocated here
    loss = nn.functional.mse_loss(scores, target)  # allocated here
    if not math.isfinite(loss.item()):
        message = f"loss is {loss.item()}"
        raise BadBatchError(message)
    return loss


def main() -> int:
    """Train on the good batches."""
    parser = argparse.ArgumentParser(description="Train, skipping bad batches.")
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()

    torch.manual_seed(12)
    model = nn.Sequential(
        nn.Linear(50, 150), nn.ReLU(), nn.Linear(150, 150), nn.ReLU(), nn.Linear(150, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    failures = []
    steps = 0

    for index in range(options.steps * 2):
        batch = torch.randn(200, 50)  # allocated here
        if index % 2:
            batch[index % 200, 7] = float("nan")
        try:
            loss = loss_of(model, batch, batch[:, :1].abs())
        except BadBatchError as error:
            failures.append(error)  # fault: the frames of its traceback stay with it
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1

    print(f"{steps} steps, {len(failures)} batches skipped; the last one: {failures[-1]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
