"""Tags sentences, and stores a note for each.

The problem: the notes of all sentences stay in the tagger, as dictionaries of words and numbers
without any tensor.

Run: ``python examples/leaks/notes_as_dicts.py [--rounds N]``
"""

import argparse
import random
import string
from typing import Any

import torch
from torch import Tensor, nn

WORDS = 60


class Tagger:
    """A tagger that stores notes."""

    def __init__(self) -> None:
        self.model = nn.Linear(26, 5)
        self.notes: list[dict[str, Any]] = []

    def count(self, word: str) -> Tensor:
        """How often each letter occurs in a word."""
        return torch.tensor([float(word.count(c)) for c in string.ascii_lowercase])

    def tag(self, sentence: list[str]) -> Tensor:
        """Scores of the tags, one row per word."""
        features = torch.stack([self.count(word) for word in sentence])
        scores: Tensor = self.model(features)
        for word, row in zip(sentence, scores.tolist(), strict=True):
            self.notes.append(  # fault: of all sentences
                {"word": word, "scores": row, "best": max(row), "context": " ".join(sentence[:12])}
            )
        return scores


def main() -> None:
    """Train the tagger."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=180)
    rng = random.Random(40)  # noqa: S311  (words, not secrets)
    torch.manual_seed(40)
    tagger = Tagger()
    optimizer = torch.optim.Adam(tagger.model.parameters())
    for _ in range(parser.parse_args().rounds):
        sentence = ["".join(rng.choices(string.ascii_lowercase, k=9)) for _ in range(WORDS)]
        gold = torch.tensor([len(set(word)) % 5 for word in sentence])
        optimizer.zero_grad()
        nn.functional.cross_entropy(tagger.tag(sentence), gold).backward()
        optimizer.step()
    print(f"{len(tagger.notes)} notes")


if __name__ == "__main__":
    main()
