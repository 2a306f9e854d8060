"""Detects anomalies in a long recording with a recurrent network, piece by piece.

The problem: the hidden state that is carried over is never detached. There is one state at any
time, whose autograd graph has all the pieces so far.

Run: ``python examples/leaks/streaming_state.py [PIECES]``
"""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

PIECE, FEATURES, HIDDEN = 12, 40, 320
ODD = 0.5


class Recording(Dataset[Tensor]):
    """A long recording, cut into pieces of 12 frames."""

    def __init__(self, pieces: int) -> None:
        self.frames = torch.randn(pieces, PIECE, FEATURES)

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> Tensor:
        return self.frames[index]


class Listener(nn.Module):
    """A recurrent network with its state."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(FEATURES, HIDDEN, batch_first=True)
        self.score = nn.Linear(HIDDEN, 1)
        self.state: Tensor | None = None

    def forward(self, piece: Tensor) -> Tensor:
        """Return the anomaly score of each frame of the next piece."""
        heard, self.state = self.rnn(piece, self.state)  # fault: allocated here, never detached
        return self.score(heard).squeeze(-1)


def main(pieces: int) -> None:
    """Process the whole recording."""
    torch.manual_seed(3)
    listener = Listener()
    listener.eval()
    odd = []
    for index, piece in enumerate(DataLoader(Recording(pieces), batch_size=1)):
        scores = listener(piece)
        if scores.max().item() > ODD:
            odd.append(index)
    print(f"{len(odd)} of {pieces} pieces are odd: {odd[:10]}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
