"""Classifies batches with a network of float32 weights, in bfloat16.

The problem: under ``torch.autocast`` every pass casts all weights again, since nothing trains them
and autocast keeps no cast of them. With small batches that takes longer than the layers.
``inference_cured.py`` is the same program without it.

Run: ``python examples/inference_autocast.py [STEPS]``
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SEED = 7
FEATURES, HIDDEN, CLASSES = 256, 2048, 10
BATCH = 4


def main() -> None:
    """Read the arguments and classify."""
    parser = argparse.ArgumentParser(description="Classify batches under autocast.")
    parser.add_argument("steps", nargs="?", type=int, default=200)
    options = parser.parse_args()
    torch.manual_seed(SEED)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = nn.Sequential(
        nn.Linear(FEATURES, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, CLASSES),
    ).to(device)
    rows = torch.randn(options.steps * BATCH, FEATURES)
    loader = DataLoader(TensorDataset(rows), batch_size=BATCH)
    first = torch.zeros((), dtype=torch.long, device=device)
    for (batch,) in loader:
        with torch.inference_mode(), torch.autocast(device.type, dtype=torch.bfloat16):
            scores = network(batch.to(device))  # fault: casts all weights
        first += (scores.argmax(dim=1) == 0).sum()
    print(f"first class: {first.item() / len(rows):.1%}")


if __name__ == "__main__":
    main()
