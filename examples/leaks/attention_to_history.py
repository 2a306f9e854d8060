"""Trains a model that attends to its outputs of all steps so far.

The problem: the history has no limit, so each step retains more and takes longer than the one
before.

Run: ``python examples/leaks/attention_to_history.py [STEPS]``
"""

import sys

import torch
from torch import Tensor, nn

BATCH, SIGNALS, WIDTH = 64, 32, 256


class Remembering(nn.Module):
    """Answers by what it has answered before."""

    history: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(SIGNALS, WIDTH), nn.Tanh())
        self.answer = nn.Linear(2 * WIDTH, 1)
        self.register_buffer("history", torch.zeros(1, WIDTH))

    def forward(self, signals: Tensor) -> Tensor:
        """Encode signals, and attend to what was encoded before."""
        encoded = self.encode(signals)
        weights = torch.softmax(encoded @ self.history.T / WIDTH**0.5, dim=1)
        remembered = weights @ self.history
        self.history = torch.cat([self.history, encoded.detach()])  # fault: no limit
        return self.answer(torch.cat([encoded, remembered], dim=1))


def train(steps: int) -> None:
    """Fit the mean of random signals."""
    torch.manual_seed(37)
    model = Remembering()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        signals = torch.randn(BATCH, SIGNALS)
        loss = nn.functional.mse_loss(model(signals), signals.mean(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    train(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
