"""Fits a LightningModule that stores the loss of every step with its autograd graph.

The problem: the graphs of all steps stay in memory. The callback of profkit monitors memory over
the whole of ``fit``, and names the list and the line; the steps that it records are fast.
With ``--cured`` the losses are stored without them.

Run: ``python examples/trainers/lightning_losses_kept.py [STEPS] [--cured]``
"""

import argparse
import logging

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from profkit.integrations.lightning import ProfkitCallback

BATCH, WIDTH, HIDDEN, CLASSES = 64, 256, 4096, 10


class Classifier(pl.LightningModule):
    """A small network.

    Args:
        cured: Whether losses are stored without them.
    """

    def __init__(self, *, cured: bool) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)
        )
        self.cured = cured
        self.losses: list[torch.Tensor] = []

    def training_step(self, batch: tuple[torch.Tensor], _number: int) -> torch.Tensor:
        """Return the loss of one batch."""
        (rows,) = batch
        classes = rows[:, :CLASSES].argmax(1)
        loss = nn.functional.cross_entropy(self.network(rows), classes)
        if self.cured:
            self.losses.append(loss.detach())
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
    batches = TensorDataset(torch.randn(options.steps, BATCH, WIDTH))
    trainer.fit(model, DataLoader(batches, batch_size=None))
    print(f"{len(model.losses)} steps, last loss {model.losses[-1].detach():.3f}")


if __name__ == "__main__":
    main()
