"""Predicts a word from the words around it.

The problem: each word becomes a one-hot vector as long as the vocabulary, and a product with a
matrix takes the row of that word.

The fix (``--cured``): an embedding reads the row.

Run: ``python examples/host/one_hot_words.py [--cured]``
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

SEED, STEPS = 7, 20
VOCABULARY, WIDTH, ROWS, AROUND = 2_000, 64, 64, 4


class Words(nn.Module):
    """The mean of the vectors of some words.

    Args:
        cured: Whether the vectors are looked up.
    """

    def __init__(self, *, cured: bool) -> None:
        super().__init__()
        self.cured = cured
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, words: Tensor) -> Tensor:
        """Return a vector for each row of words. Shape ``(rows, around)`` to ``(rows, width)``."""
        if self.cured:
            return self.embedding(words).mean(dim=1)
        one_hot = functional.one_hot(words, VOCABULARY).float()
        return (one_hot @ self.embedding.weight).mean(dim=1)  # fault: reads the whole matrix


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return the step of training."""
    torch.manual_seed(SEED)
    network = nn.Sequential(Words(cured=cured), nn.Linear(WIDTH, 16))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    words, kinds = torch.randint(VOCABULARY, (ROWS, AROUND)), torch.randint(16, (ROWS,))

    def step() -> None:
        loss = functional.cross_entropy(network(words), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train vectors of words.")
    parser.add_argument("--cured", action="store_true")
    train = prepare(cured=parser.parse_args().cured)
    for _ in range(STEPS):
        train()
