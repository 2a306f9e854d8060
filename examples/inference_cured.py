"""Classifies batches with a network of float32 weights, in bfloat16.

The fixed version of ``inference_autocast.py``: the network and its inputs are cast once, before the
loop.

Run: ``python examples/inference_cured.py [STEPS]``
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
    parser = argparse.ArgumentParser(description="Classify batches with a network in bfloat16.")
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
    ).to(device, torch.bfloat16)
    rows = torch.randn(options.steps * BATCH, FEATURES)
    loader = DataLoader(TensorDataset(rows), batch_size=BATCH)
    first = torch.zeros((), dtype=torch.long, device=device)
    for (batch,) in loader:
        with torch.inference_mode():
            scores = network(batch.to(device, torch.bfloat16))
        first += (scores.argmax(dim=1) == 0).sum()
    print(f"first class: {first.item() / len(rows):.1%}")


if __name__ == "__main__":
    main()
