"""Fits a LightningModule that stores the loss of every step with its autograd graph.

The problem: the graphs of all steps stay in memory. The callback of profkit monitors memory over
the whole of ``fit``, and names the list and the line; the steps that it records are fast.
With ``--cured`` the losses are stored as numbers.

Run: ``python examples/trainers/lightning_losses_kept.py [STEPS] [--cured]``
"""

import argparse
import logging

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from profkit.integrations.lightning import ProfkitCallback

BATCH, WIDTH, CLASSES = 32, 64, 10


class Rows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random rows whose class is their largest of the first columns.

    Args:
        n: Number of rows.
    """

    def __init__(self, n: int) -> None:
        self.rows = torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.rows[index], self.rows[index, :CLASSES].argmax()


class Classifier(pl.LightningModule):
    """A small network.

    Args:
        cured: Whether losses are stored as numbers.
    """

    def __init__(self, *, cured: bool) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, CLASSES))
        self.cured = cured
        self.losses: list[torch.Tensor | float] = []

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _number: int) -> torch.Tensor:
        """The loss of one batch."""
        rows, classes = batch
        loss = nn.functional.cross_entropy(self.network(rows), classes)
        if self.cured:
            self.losses.append(loss.item())
        else:
            self.losses.append(loss)  # fault: with the graph of the step
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), fused=True)


def main() -> None:
    """Fit, and print the last loss; the callback prints the report on stderr."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("steps", nargs="?", type=int, default=100)
    parser.add_argument("--cured", action="store_true")
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    model = Classifier(cured=options.cured)
    trainer = pl.Trainer(
        max_epochs=1,
        callbacks=[ProfkitCallback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(Rows(options.steps * BATCH), BATCH))
    print(f"{len(model.losses)} steps, last loss {torch.as_tensor(model.losses[-1]):.3f}")


if __name__ == "__main__":
    main()
