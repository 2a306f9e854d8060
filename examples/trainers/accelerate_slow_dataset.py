"""Trains by a loop with Accelerate on rows that are decompressed in the training process.

The problem: the loader has no workers, so each step waits until its rows are decompressed. The
profile of profkit shows the wait as a part of the step time.
With ``--cured`` the rows are decompressed once, before training.

Run: ``python examples/trainers/accelerate_slow_dataset.py [STEPS] [--cured]``
"""

import argparse
import zlib

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

from profkit.integrations.accelerate import ProfkitProfile

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


def main() -> None:
    """Train, and print the last loss; the profile prints the report on stderr."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("steps", nargs="?", type=int, default=30)
    parser.add_argument("--cured", action="store_true")
    options = parser.parse_args()

    accelerator = Accelerator()
    model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    loader = DataLoader(Rows(options.steps * BATCH, unpacked=options.cured), BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    with ProfkitProfile(accelerator) as profile:
        for batch in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch["rows"]), batch["classes"])
            accelerator.backward(loss)
            optimizer.step()
            profile.step()

    print(f"{options.steps} steps, last loss {loss.detach():.3f}")


if __name__ == "__main__":
    main()
