"""Trains a decoder on sentences of 24 lengths, with a mask for each length in a cache.

No leak: the number of lengths is limited; rare ones are cached later.

Run: ``python examples/leaks/clean_masks_by_length.py [STEPS]``
"""

import sys

import torch
from torch import Tensor, nn

LENGTHS = range(40, 160, 5)


class Decoder(nn.Module):
    """Causal attention."""

    def __init__(self, words: int = 80, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.attend = nn.MultiheadAttention(width, 2, batch_first=True)
        self.guess = nn.Linear(width, words)
        self.masks: dict[int, Tensor] = {}

    def mask(self, length: int) -> Tensor:
        """Return the causal mask of a length."""
        if length not in self.masks:
            self.masks[length] = torch.ones(length, length).triu(1).bool()
        return self.masks[length]

    def forward(self, sentence: Tensor) -> Tensor:
        """Scores of the next words."""
        x = self.words(sentence)
        heard, _ = self.attend(x, x, x, attn_mask=self.mask(sentence.shape[1]), need_weights=False)
        return self.guess(heard)


def main(steps: int) -> None:
    """Train."""
    torch.manual_seed(45)
    model = Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        length = LENGTHS[int(torch.randint(len(LENGTHS), ()))]
        sentence = torch.randint(80, (2, length))
        scores = model(sentence[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), sentence[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{len(model.masks)} masks after {steps} steps, loss {loss.item():.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 240)
