"""Trains, and serializes the network in each step, to be able to restore any of them.

The problem: the bytes of all steps stay in memory. They are not in a tensor, so counting tensors
does not show them.

Run: ``python examples/leaks/checkpoints_as_bytes.py [--steps N]``
"""

import argparse
import io
from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass
class History:
    """All checkpoints."""

    checkpoints: list[bytes] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def note(self, model: nn.Module, loss: float) -> None:
        """Store the state of a model."""
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        self.checkpoints.append(buffer.getvalue())  # fault: bytes of every step
        self.losses.append(loss)


def main() -> None:
    """Train, and restore the best checkpoint."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    steps = parser.parse_args().steps

    torch.manual_seed(23)
    model = nn.Sequential(
        nn.Linear(30, 250), nn.ELU(), nn.Linear(250, 250), nn.ELU(), nn.Linear(250, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, nesterov=True, momentum=0.8)
    history = History()

    for _ in range(steps):
        x = torch.randn(64, 30)
        loss = nn.functional.smooth_l1_loss(model(x), x.norm(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.note(model, loss.item())

    best = min(range(steps), key=history.losses.__getitem__)
    model.load_state_dict(torch.load(io.BytesIO(history.checkpoints[best])))
    print(f"best was step {best} with {history.losses[best]:.4f}")


if __name__ == "__main__":
    main()
