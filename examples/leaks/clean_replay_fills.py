"""Learns to balance with a replay memory that is full after 40 % of the run.

No leak: the memory is bounded. ``replay_without_end.py`` is the same without a bound.

Run: ``python examples/leaks/clean_replay_fills.py [STEPS] [CAPACITY]``
"""

import random
import sys
from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Transition(NamedTuple):
    """Observation, action and result."""

    state: Tensor
    action: int
    reward: float
    after: Tensor


def look(angle: float) -> Tensor:
    """Four images of a leaning pole."""
    rows = torch.arange(21.0)
    return torch.stack([torch.outer(torch.cos(rows * (angle + i)), rows) for i in range(4)])


def learn(net: nn.Module, optimizer: torch.optim.Optimizer, memories: list[Transition]) -> float:
    """Do one step of Q-learning, and return its loss."""
    states = torch.stack([memory.state.flatten() for memory in memories])
    afters = torch.stack([memory.after.flatten() for memory in memories])
    actions = torch.tensor([[memory.action] for memory in memories])
    rewards = torch.tensor([memory.reward for memory in memories])
    with torch.no_grad():
        goal = rewards + 0.9 * net(afters).max(1).values
    loss = nn.functional.mse_loss(net(states).gather(1, actions).squeeze(1), goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def play(steps: int, capacity: int) -> None:
    """Balance and learn."""
    torch.manual_seed(43)
    chance = random.Random(43)  # noqa: S311  (a game, not secrets)
    net = nn.Sequential(nn.Linear(4 * 21 * 21, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-4)
    memory: deque[Transition] = deque(maxlen=capacity)
    angle = 0.0
    for step in range(steps):
        state = look(angle)
        action = chance.randrange(2)
        angle = 0.95 * angle + (0.05 if action else -0.05)
        memory.append(Transition(state, action, -abs(angle), look(angle)))
        loss = learn(net, optimizer, chance.choices(memory, k=16))
        if step % 60 == 0:
            print(f"step {step}: loss {loss:.4f}, angle {angle:+.2f}")


if __name__ == "__main__":
    arguments = [int(text) for text in sys.argv[1:]]
    play(*(arguments + [250, 100][len(arguments) :]))
