"""Trains with a trainer and callbacks; one of them averages the weights of the last steps.

The problem: the callback copies the weights in every step and averages the last ten copies, and
older copies are never dropped.

Run: ``python examples/leaks/weight_snapshots.py [--max-steps N]``
"""

import argparse
import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Callback:
    """Is called by a trainer."""

    def on_train_batch_end(self, trainer: "Trainer", step: int) -> None:
        """Is called after a batch."""

    def on_train_end(self, trainer: "Trainer") -> None:
        """Is called at the end."""


class WeightAveraging(Callback):
    """Sets the weights to the mean of the last ones at the end."""

    def __init__(self, last: int = 10) -> None:
        self.last = last
        self.snapshots: list[dict[str, Tensor]] = []

    def on_train_batch_end(self, trainer: "Trainer", step: int) -> None:  # noqa: ARG002
        """Copy the weights."""
        self.snapshots.append(copy.deepcopy(trainer.module.state_dict()))  # fault: allocated here

    def on_train_end(self, trainer: "Trainer") -> None:
        """Set the mean."""
        chosen = self.snapshots[-self.last :]
        mean = {
            name: torch.stack([weights[name] for weights in chosen]).mean(0) for name in chosen[0]
        }
        trainer.module.load_state_dict(mean)


class Progress(Callback):
    """Prints the loss in every 25th step."""

    def on_train_batch_end(self, trainer: "Trainer", step: int) -> None:
        """Print the loss in every 25th step."""
        if step % 25 == 0:
            print(f"step {step}: {trainer.loss:.4f}")


class Regression(nn.Module):
    """A module with its own loss and optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(12, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def training_step(self, batch: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return (self.layers(batch) - batch.sum(1, keepdim=True)).pow(2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)


class Trainer:
    """Trains a module, and calls its callbacks."""

    def __init__(self, max_steps: int, callbacks: Iterable[Callback]) -> None:
        self.max_steps = max_steps
        self.callbacks = list(callbacks)
        self.module = Regression()
        self.loss = 0.0

    def fit(self, module: Regression) -> None:
        """Train a module."""
        self.module = module
        optimizer = module.configure_optimizers()
        for step in range(self.max_steps):
            loss = module.training_step(torch.randn(64, 12))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.loss = loss.item()
            for callback in self.callbacks:
                callback.on_train_batch_end(self, step)
        for callback in self.callbacks:
            callback.on_train_end(self)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=130)
    torch.manual_seed(28)
    Trainer(parser.parse_args().max_steps, [Progress(), WeightAveraging()]).fit(Regression())
