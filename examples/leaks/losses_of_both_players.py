"""Trains a generator and a critic against each other, and stores the losses of both.

The problem: both lists store tensors, each with a graph of its own.

Run: ``python examples/leaks/losses_of_both_players.py [--steps N]``
"""

import argparse

import torch
from torch import Tensor, nn


def main() -> None:
    """Train for some steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=220)
    torch.manual_seed(72)
    generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64))
    critic = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    for_generator = torch.optim.Adam(generator.parameters(), lr=2e-4)
    for_critic = torch.optim.Adam(critic.parameters(), lr=2e-4)
    measure = nn.BCEWithLogitsLoss()
    real, fake = torch.ones(32, 1), torch.zeros(32, 1)
    generator_losses: list[Tensor] = []
    critic_losses: list[Tensor] = []

    for _ in range(parser.parse_args().steps):
        picture = generator(torch.randn(32, 16))
        critic_loss = (  # allocated here
            measure(critic(torch.randn(32, 64)), real)  # allocated here
            + measure(critic(picture.detach()), fake)
        )
        for_critic.zero_grad()
        critic_loss.backward()
        for_critic.step()

        generator_loss = measure(critic(picture), real)  # allocated here
        for_generator.zero_grad()
        generator_loss.backward()
        for_generator.step()
        generator_losses.append(generator_loss)
        critic_losses.append(critic_loss)  # fault: with their graphs, as those above

    print(f"{sum(loss.item() for loss in generator_losses) / len(critic_losses):.3f}")


if __name__ == "__main__":
    main()
