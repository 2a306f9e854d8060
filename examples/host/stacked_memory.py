"""Learns from random samples of what an agent has seen.

The problem: each reward is stored as a tensor of its own, and each batch joins hundreds of them.

The fix (``--cured``): all rewards are in one tensor, of which a batch takes rows.

Run: ``python examples/host/stacked_memory.py [--cured]``
"""

import argparse
import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

SEED, STEPS = 7, 20
N_STORED, BATCH, WIDTH = 2_000, 512, 8


class Memory:
    """What an agent has seen, and the reward of each.

    Args:
        cured: Whether rewards are rows of one tensor.
    """

    def __init__(self, *, cured: bool) -> None:
        self.cured = cured
        self.states = torch.randn(N_STORED, WIDTH)
        self.rewards = torch.randn(N_STORED)
        self.stored = [torch.tensor(reward) for reward in self.rewards.tolist()]

    def sample(self) -> tuple[Tensor, Tensor]:
        """Return a batch of states and their rewards."""
        index = random.sample(range(N_STORED), BATCH)
        if self.cured:
            return self.states[index], self.rewards[index]
        rewards = [self.stored[i] for i in index]
        return self.states[index], torch.stack(rewards)  # fault: joins as many tensors as rewards


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return the step of training."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    memory = Memory(cured=cured)
    network = nn.Linear(WIDTH, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

    def step() -> None:
        states, rewards = memory.sample()
        loss = functional.mse_loss(network(states).squeeze(1), rewards)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Learn from stored samples.")
    parser.add_argument("--cured", action="store_true")
    train = prepare(cured=parser.parse_args().cured)
    for _ in range(STEPS):
        train()
