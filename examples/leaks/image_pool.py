"""Trains a generator against a critic that also gets earlier images.

The problem: the pool stores images with their graphs, and ``retain_graph=True`` retains what these
graphs had saved: each image in the pool retains one whole pass through the generator.

Run: ``python examples/leaks/image_pool.py [--steps N] [--batch N]``
"""

import argparse
import random

import torch
from torch import Tensor, nn

SHARE_OF_FRESH = 0.5


class Generator(nn.Module):
    """Creates images from noise."""

    def __init__(self) -> None:
        super().__init__()
        self.grow = nn.Linear(8, 16 * 7 * 7)
        self.up = nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1)
        self.out = nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1)

    def forward(self, noise: Tensor) -> Tensor:
        """Images of 28 x 28."""
        x = torch.relu(self.grow(noise)).view(-1, 16, 7, 7)  # allocated here
        x = torch.relu(self.up(x))  # allocated here
        return torch.tanh(self.out(x))  # allocated here


class Pool:
    """Earlier images."""

    def __init__(self, seed: int) -> None:
        self.pictures: list[Tensor] = []
        self.chance = random.Random(seed)  # noqa: S311  (pictures, not secrets)

    def mix(self, fresh: Tensor) -> Tensor:
        """Some new images, and some earlier ones."""
        self.pictures.append(fresh)  # fault: with its graph, and without a limit
        old = self.chance.choice(self.pictures)
        return torch.where(torch.rand(len(fresh), 1, 1, 1) < SHARE_OF_FRESH, fresh, old).detach()


def main() -> None:
    """Train both."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()

    torch.manual_seed(21)
    generator = Generator()
    critic = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    opt_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    pool = Pool(21)

    for step in range(options.steps):
        real = torch.rand(options.batch, 1, 28, 28)
        fake = generator(torch.randn(options.batch, 8))
        loss_g = -critic(fake).mean()
        opt_g.zero_grad()
        loss_g.backward(retain_graph=True)
        opt_g.step()
        loss_d = critic(pool.mix(fake)).mean() - critic(real).mean()
        opt_d.zero_grad()
        loss_d.backward()
        opt_d.step()
        if step % 10 == 0:
            print(f"[{step}/{options.steps}] critic {loss_d.item():.3f} gen {loss_g.item():.3f}")


if __name__ == "__main__":
    main()
