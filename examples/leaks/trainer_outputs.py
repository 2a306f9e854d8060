"""Trains with its own trainer, in the style of well-known ones.

The problem: the trainer stores what each step returns for the end of the epoch, and the list is not
cleared there. A step returns its scores beside its loss, so their graph stays too.

Run: ``python examples/leaks/trainer_outputs.py [--max-epochs N] [--limit-batches N]``
"""

import argparse
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (as everybody calls it)
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class TaskModule(nn.Module):
    """A model with its own loss and optimizer."""

    def __init__(self, width: int = 96, lr: float = 3e-3) -> None:
        super().__init__()
        self.lr = lr
        self.encoder = nn.Sequential(nn.Linear(40, width), nn.GELU(), nn.LayerNorm(width))
        self.head = nn.Linear(width, 12)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the twelve classes."""
        return self.head(self.encoder(x))  # allocated here

    def training_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Any]:
        """Return the loss, and the scores for the end of the epoch."""
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)  # allocated here
        return {"loss": loss, "logits": logits, "index": batch_idx}

    def training_epoch_end(self, outputs: list[dict[str, Any]]) -> None:
        """Print the mean loss."""
        mean = torch.stack([out["loss"].detach() for out in outputs]).mean()
        print(f"loss {mean.item():.4f} over {len(outputs)} batches")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class Trainer:
    """Runs the loop."""

    def __init__(self, max_epochs: int) -> None:
        self.max_epochs = max_epochs
        self.step_outputs: list[dict[str, Any]] = []
        self.global_step = 0

    def fit(self, module: TaskModule, loader: Iterable[list[Tensor]]) -> None:
        """Train."""
        optimizer = module.configure_optimizers()
        for _ in range(self.max_epochs):
            for index, batch in enumerate(loader):
                output = module.training_step(batch, index)
                optimizer.zero_grad()
                output["loss"].backward()
                optimizer.step()
                self.step_outputs.append(output)  # fault: not cleared after the epoch
                self.global_step += 1
            module.training_epoch_end(self.step_outputs)


def main() -> None:
    """Fit a module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-epochs", type=int, default=5)
    parser.add_argument("--limit-batches", type=int, default=36)
    options = parser.parse_args()
    torch.manual_seed(31)
    n = options.limit_batches * 128
    data = TensorDataset(torch.randn(n, 40), torch.randint(12, (n,)))
    trainer = Trainer(options.max_epochs)
    trainer.fit(TaskModule(), DataLoader(data, batch_size=128, shuffle=True))
    print(f"{trainer.global_step} steps")


if __name__ == "__main__":
    main()
