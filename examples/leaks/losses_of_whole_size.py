"""Trains on images, and stores each step's loss detached, as one should.

The problem: the loss of ``mse_loss`` is one number in a storage as large as its input, because
PyTorch reduces it in a buffer of that size and shrinks the shape alone. Detached, it retains the
whole storage; ``.clone()`` or ``.item()`` retains the number only.

Run: ``python examples/leaks/losses_of_whole_size.py [--steps N]``
"""

import argparse

import torch
from torch import Tensor, nn


class Denoiser(nn.Module):
    """Removes noise from images."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1)
        )

    def forward(self, noisy: Tensor) -> Tensor:
        """Return the images without noise."""
        return noisy - self.layers(noisy)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    steps = parser.parse_args().steps

    torch.manual_seed(32)
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses: list[Tensor] = []

    for _ in range(steps):
        clear = torch.rand(16, 1, 32, 32)
        restored = model(clear + 0.1 * torch.randn_like(clear))
        loss = nn.functional.mse_loss(restored, clear)  # allocated here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())  # fault: 4 bytes in a storage of 65536

    print(f"loss {losses[0].item():.4f} to {torch.stack(losses[-10:]).mean().item():.4f}")


if __name__ == "__main__":
    main()
