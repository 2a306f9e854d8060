"""Trains a tiny attention model on a text that advances by one token in each step.

The problem: the table of positions is cached by the window's position in the text, without a limit.
The window is never at one position twice, so every call is a new entry.

Run: ``python examples/leaks/cached_positions.py [STEPS]``
"""

import functools
import math
import sys

import torch
from torch import Tensor, nn

WIDTH, WINDOW, WORDS = 48, 128, 90


@functools.lru_cache(maxsize=None)  # noqa: UP033  (as it stands in many a program)
def positional(start: int, length: int) -> Tensor:
    """Sines and cosines of the positions from ``start`` on."""
    places = torch.arange(start, start + length).unsqueeze(1)
    rates = torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(10_000) / WIDTH))
    angles = places * rates
    return torch.cat([torch.sin(angles), torch.cos(angles)], 1)  # fault: allocated here


class Reader(nn.Module):
    """One layer of attention over a window of words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.attend = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.guess = nn.Linear(WIDTH, WORDS)

    def forward(self, window: Tensor, start: int) -> Tensor:
        """Scores of the next word at each position."""
        x = self.words(window) + positional(start, window.shape[1])
        mask = nn.Transformer.generate_square_subsequent_mask(window.shape[1])
        read, _ = self.attend(x, x, x, attn_mask=mask, need_weights=False)
        return self.guess(read)


def main(steps: int) -> None:
    """Read the text once."""
    torch.manual_seed(10)
    text = torch.randint(WORDS, (steps + WINDOW + 1,))
    reader = Reader()
    optimizer = torch.optim.AdamW(reader.parameters(), lr=1e-3)
    for start in range(steps):
        window = text[start : start + WINDOW + 1].unsqueeze(0)
        scores = reader(window[:, :-1], start)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"read {steps} words, loss {loss.item():.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 150)
