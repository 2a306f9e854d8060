"""Trains a recurrent network on batches of sequences of very different lengths.

No leak: memory varies with the batch, by more than most leaks would add.

Run: ``python examples/leaks/clean_random_lengths.py [--steps N] [--longest N]``
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence


class Tagger(nn.Module):
    """Classifies a sequence into five classes."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(16, 24, batch_first=True)
        self.head = nn.Linear(24, 5)

    def forward(self, sequences: list[Tensor]) -> Tensor:
        """Scores of the classes."""
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        packed = pack_padded_sequence(
            pad_sequence(sequences, batch_first=True),
            lengths,
            batch_first=True,
            enforce_sorted=False,
        )
        _, (last, _) = self.rnn(packed)
        return self.head(last[-1])


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--longest", type=int, default=60)
    options = parser.parse_args()

    torch.manual_seed(47)
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    for step in range(options.steps):
        lengths = torch.randint(2, options.longest, (int(torch.randint(2, 24, ())),))
        batch = [torch.randn(int(length), 16) for length in lengths]
        loss = nn.functional.cross_entropy(model(batch), lengths % 5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(f"step {step}: {len(batch)} sequences, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
