"""Translates sentences word by word, and takes only the first words of each translation.

The problem: a generator that did not run to its end retains its frame with all local variables,
and a list retains all generators.

Run: ``python examples/leaks/suspended_generators.py [SENTENCES]``
"""

import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

WORDS, WIDTH, LONGEST = 300, 64, 40


class Translator(nn.Module):
    """Scores the next word from the mean of the words so far."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.next_word = nn.Linear(WIDTH, WORDS)

    def forward(self, sentence: Tensor) -> Tensor:
        """Scores of all the words."""
        return self.next_word(self.words(sentence).mean(-2))


def translate(model: Translator, sentences: Tensor) -> Iterator[list[int]]:
    """Yield the words of a translation, one after another."""
    scores = model.next_word(model.words(sentences))  # allocated here
    for place in range(LONGEST):
        yield scores[:, place % scores.shape[1]].argmax(-1).tolist()


@torch.inference_mode()
def main(sentences: int) -> None:
    """Translate all sentences, and print the beginning of each."""
    torch.manual_seed(16)
    model = Translator().eval()
    text = TensorDataset(torch.randint(WORDS, (sentences * 4, 20)))
    translations = []
    starts = []
    for (batch,) in DataLoader(text, batch_size=4):
        words = translate(model, batch)
        starts.append(next(words)[0])
        translations.append(words)  # fault: none of them is run to its end
    print(f"{len(translations)} translations begin with {len(set(starts))} different words")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 180)
