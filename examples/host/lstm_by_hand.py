"""Sorts signals into classes by an LSTM.

The problem: the LSTM is a loop over time steps, of which each calls a dozen small operators.

The fix (``--cured``): ``nn.LSTM`` runs all time steps in one call.

Run: ``python examples/host/lstm_by_hand.py [--cured]``
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

SEED, STEPS = 7, 20
ROWS, TIMES, WIDTH, UNITS, CLASSES = 16, 40, 6, 24, 5


class LSTM(nn.Module):
    """An LSTM with one product for all gates."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(WIDTH + UNITS, 4 * UNITS)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """Return the outputs for all time steps. Shape ``(rows, times, units)``."""
        h = c = torch.zeros(x.shape[0], UNITS)
        outputs = []
        for t in range(x.shape[1]):
            gates = self.gates(torch.cat((x[:, t], h), dim=1))  # fault: a loop over time steps
            i, f, g, o = gates.chunk(4, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        return torch.stack(outputs, dim=1), None


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return the step of training."""
    torch.manual_seed(SEED)
    lstm = nn.LSTM(WIDTH, UNITS, batch_first=True) if cured else LSTM()
    head = nn.Linear(UNITS, CLASSES)
    optimizer = torch.optim.SGD([*lstm.parameters(), *head.parameters()], lr=0.1)
    x, kinds = torch.randn(ROWS, TIMES, WIDTH), torch.randint(CLASSES, (ROWS,))

    def step() -> None:
        outputs, _ = lstm(x)
        loss = functional.cross_entropy(head(outputs[:, -1]), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Sort signals into classes.")
    parser.add_argument("--cured", action="store_true")
    train = prepare(cured=parser.parse_args().cured)
    for _ in range(STEPS):
        train()
