"""Trains a generator against a critic, with a pool of fifty earlier images.

No leak: the pool is full soon, and its images are detached. ``image_pool.py`` is the same without
either.

Run: ``python examples/leaks/clean_gan.py [--steps N]``
"""

import argparse
import random

import torch
from torch import Tensor, nn

CHANCE_OF_OLD = 0.5


class ImagePool:
    """Returns new images or earlier ones, as in CycleGAN."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.images: list[Tensor] = []
        self.chance = random.Random(55)  # noqa: S311  (pictures, not secrets)

    def query(self, images: Tensor) -> Tensor:
        """For each image the image itself, or one from the pool that it replaces."""
        chosen = []
        for image in images.detach():
            if len(self.images) < self.size:
                self.images.append(image.clone())
                chosen.append(image)
            elif self.chance.random() < CHANCE_OF_OLD:
                place = self.chance.randrange(self.size)
                chosen.append(self.images[place])
                self.images[place] = image.clone()
            else:
                chosen.append(image)
        return torch.stack(chosen)


def main() -> None:
    """Train both."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    steps = parser.parse_args().steps

    torch.manual_seed(55)
    generator = nn.Sequential(nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 784), nn.Tanh())
    critic = nn.Sequential(nn.Linear(784, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1), nn.Flatten(0))
    opt_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
    adversarial = nn.BCEWithLogitsLoss()
    pool = ImagePool(50)

    for step in range(steps):
        real, ones, zeros = torch.rand(8, 784), torch.ones(8), torch.zeros(8)
        fake = generator(torch.randn(8, 10))
        opt_g.zero_grad()
        loss_g = adversarial(critic(fake), ones)
        loss_g.backward()
        opt_g.step()
        opt_d.zero_grad()
        loss_d = adversarial(critic(real), ones) + adversarial(critic(pool.query(fake)), zeros)
        loss_d.backward()
        opt_d.step()
        if step % 40 == 0:
            print(f"step {step}: generator {loss_g.item():.3f}, critic {loss_d.item():.3f}")


if __name__ == "__main__":
    main()
