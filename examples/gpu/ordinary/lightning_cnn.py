"""Trains a small convolutional network with Lightning, in mixed precision on a GPU.

Run: ``python examples/gpu/ordinary/lightning_cnn.py``
"""

import tempfile
from itertools import pairwise

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

KINDS = 10


class Classifier(lightning.LightningModule):
    """Three convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 64, 128, 256)
        blocks = [
            nn.Sequential(
                nn.Conv2d(before, after, 3, padding=1),
                nn.BatchNorm2d(after),
                nn.ReLU(),
                nn.MaxPool2d(2),
            )
            for before, after in pairwise(widths)
        ]
        self.net = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(256 * 16, KINDS))

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        """Return the loss of a batch."""
        pictures, kinds = batch
        loss = nn.functional.cross_entropy(self.net(pictures), kinds)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        """Log the share of a batch that is classified correctly."""
        pictures, kinds = batch
        self.log("accuracy", (self.net(pictures).argmax(1) == kinds).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    """Train for two epochs."""
    lightning.seed_everything(0)
    n_batches, batch = (60, 128) if torch.cuda.is_available() else (8, 8)
    pictures = torch.randn(n_batches * batch, 3, 32, 32)
    data = TensorDataset(pictures, torch.randint(KINDS, (len(pictures),)))
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=2,
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            precision="16-mixed" if torch.cuda.is_available() else "32-true",
        )
        trainer.fit(
            Classifier(),
            DataLoader(data, batch, shuffle=True, num_workers=2),
            DataLoader(data, batch, num_workers=2),
        )


if __name__ == "__main__":
    main()
