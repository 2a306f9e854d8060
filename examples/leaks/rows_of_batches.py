"""Scores sentences, and keeps a row for each word.

The problem: four hundred small tensors of each step stay in a list. What they are made of takes
more memory than their values.

Run: ``python examples/leaks/rows_of_batches.py [--steps N]``
"""

import argparse

import torch
from torch import nn

WORDS = 400


def main() -> None:
    """Train, and keep the scores of words."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    torch.manual_seed(52)
    model = nn.Linear(8, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kept = []

    for _ in range(parser.parse_args().steps):
        scores = model(torch.randn(WORDS, 8))
        optimizer.zero_grad()
        scores.square().mean().backward()
        optimizer.step()
        for row in scores.detach():
            word = row.clone()  # allocated here
            kept.append(word)  # fault: of all words

    print(f"{len(kept)} rows")


if __name__ == "__main__":
    main()
