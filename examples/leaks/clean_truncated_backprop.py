"""Trains a recurrent network on a long text, piece by piece, with the state carried over.

No leak: the state is detached between the pieces. ``streaming_state.py`` does not detach it.

Run: ``python examples/leaks/clean_truncated_backprop.py [PIECES]``
"""

import sys

import torch
from torch import Tensor, nn


class CharModel(nn.Module):
    """Predicts the next letter."""

    def __init__(self, letters: int = 60, width: int = 48) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.rnn = nn.LSTM(width, width, batch_first=True)
        self.guess = nn.Linear(width, letters)

    def forward(
        self, text: Tensor, state: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Scores of the next letters, and the new state."""
        read, after = self.rnn(self.letters(text), state)
        return self.guess(read), after


def repackage(state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return a state without its autograd graph."""
    return state[0].detach(), state[1].detach()


def main(pieces: int) -> None:
    """Read the text."""
    torch.manual_seed(56)
    model = CharModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    text = torch.randint(60, (4, pieces * 25 + 1))
    state = None
    for piece in range(pieces):
        part = text[:, piece * 25 : piece * 25 + 26]
        scores, state = model(part[:, :-1], None if state is None else repackage(state))
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), part[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
    print(f"{pieces} pieces, loss {loss.item():.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 130)
