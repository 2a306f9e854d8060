"""Trains from a list of dicts, whose pages each loader worker copies as it reads them.

Run: ``python examples/leaks/samples_as_dicts.py --steps 300``.
"""

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

BATCH = 160


class Annotations(Dataset[tuple[Tensor, Tensor]]):
    """Boxes and names, as in a JSON file."""

    def __init__(self, n: int) -> None:
        self.samples: list[dict[str, Any]] = [
            {"name": f"image-{n:08d}.jpg", "box": [n, n + 1000, n + 2000, n + 3000], "label": n % 7}
            for n in range(n)
        ]  # fault: a worker that reads a sample copies its page

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        sample = self.samples[place]
        box = torch.tensor(sample["box"], dtype=torch.float32) / len(sample["name"]) / 1e4
        return box, torch.tensor(sample["label"])


def main() -> None:
    """Fit names to boxes, in one pass over all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    n_steps = parser.parse_args().steps

    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 7))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(
        Annotations(n_steps * BATCH),
        batch_size=BATCH,
        num_workers=2,
        multiprocessing_context="fork",
    )

    for boxes, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(boxes), labels).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
