"""Trains with the Trainer of Transformers on rows that are decompressed in the training process.

The problem: the loader has no workers, so each step waits until its rows are decompressed. The
callback of profkit shows the wait as a part of the step time.
With ``--cured`` the rows are decompressed once, before training.

Run: ``python examples/trainers/huggingface_slow_dataset.py [STEPS] [--cured]``
"""

import argparse
import tempfile
import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from profkit.integrations.huggingface import ProfkitTrainerCallback

BATCH, WIDTH, HIDDEN, CLASSES = 8, 256, 1 << 15, 10
PACKED_ROWS = 2048


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Rows that are stored compressed, like files.

    Args:
        n: Number of rows.
        unpacked: Whether they are decompressed once, here.
    """

    def __init__(self, n: int, *, unpacked: bool) -> None:
        chance = np.random.default_rng(0)
        self.n = n
        table = chance.integers(0, 8, (PACKED_ROWS, WIDTH)).astype(np.float32)
        self.packed = zlib.compress(table.tobytes())
        self.table = self.unpack() if unpacked else None

    def unpack(self) -> torch.Tensor:
        """All rows."""
        table = np.frombuffer(zlib.decompress(self.packed), np.float32)
        return torch.from_numpy(table.reshape(PACKED_ROWS, WIDTH).copy())

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        table = self.unpack() if self.table is None else self.table  # fault: for each row
        row = table[index % PACKED_ROWS]
        return {"rows": row, "classes": row[:CLASSES].argmax()}


class Classifier(nn.Module):
    """A small network, with the loss that the Trainer expects."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)
        )

    def forward(self, rows: torch.Tensor, classes: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss of one batch."""
        return {"loss": nn.functional.cross_entropy(self.network(rows), classes)}


def main() -> None:
    """Train, and print the mean loss; the callback prints the report on stderr."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("steps", nargs="?", type=int, default=30)
    parser.add_argument("--cured", action="store_true")
    options = parser.parse_args()

    rows = Rows(options.steps * BATCH, unpacked=options.cured)

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=BATCH,
            num_train_epochs=1,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        trainer = Trainer(
            Classifier(), arguments, train_dataset=rows, callbacks=[ProfkitTrainerCallback()]
        )
        result = trainer.train()

    print(f"{result.global_step} steps, mean loss {result.training_loss:.3f}")


if __name__ == "__main__":
    main()
