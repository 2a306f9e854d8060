"""Learns to balance with a replay memory that gets one entry in every step.

The problem: the memory is an unbounded list. ``clean_replay_fills.py`` is the same with a bound.

Run: ``python examples/leaks/replay_without_end.py [STEPS]``
"""

import random
import sys
from dataclasses import dataclass

import torch
from torch import Tensor, nn

EXPLORE = 0.2


@dataclass(slots=True)
class Transition:
    """Observation, action and result."""

    state: Tensor
    action: int
    reward: float
    after: Tensor


class Agent:
    """Learns from its replay memory."""

    def __init__(self) -> None:
        self.chance = random.Random(31)  # noqa: S311  (a game, not secrets)
        self.net = nn.Sequential(nn.Linear(4 * 21 * 21, 32), nn.ReLU(), nn.Linear(32, 2))
        self.optimizer = torch.optim.RMSprop(self.net.parameters(), lr=1e-4)
        self.memory: list[Transition] = []

    def act(self, state: Tensor) -> int:
        """Left or right."""
        if self.chance.random() < EXPLORE:
            return self.chance.randrange(2)
        with torch.no_grad():
            return int(self.net(state.flatten()).argmax())

    def remember(self, transition: Transition) -> None:
        """Store a transition."""
        self.memory.append(transition)  # fault: no limit

    def learn(self) -> float:
        """Learn from some of the transitions and return the loss."""
        memories = self.chance.choices(self.memory, k=16)
        states = torch.stack([memory.state.flatten() for memory in memories])
        afters = torch.stack([memory.after.flatten() for memory in memories])
        actions = torch.tensor([[memory.action] for memory in memories])
        rewards = torch.tensor([memory.reward for memory in memories])
        with torch.no_grad():
            goal = rewards + 0.9 * self.net(afters).max(1).values
        loss = nn.functional.mse_loss(self.net(states).gather(1, actions).squeeze(1), goal)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def look(angle: float) -> Tensor:
    """Four images of a leaning pole."""
    rows = torch.arange(21.0)
    pictures = [torch.outer(torch.cos(rows * (angle + i)), rows) for i in range(4)]
    return torch.stack(pictures)  # allocated here


def play(steps: int) -> None:
    """Balance and learn."""
    torch.manual_seed(31)
    agent = Agent()
    angle = 0.0
    for step in range(steps):
        state = look(angle)
        action = agent.act(state)
        angle = 0.95 * angle + (0.05 if action else -0.05)
        agent.remember(Transition(state, action, -abs(angle), look(angle)))
        loss = agent.learn()
        if step % 60 == 0:
            print(f"step {step}: loss {loss:.4f}, angle {angle:+.2f}")


if __name__ == "__main__":
    play(int(sys.argv[1]) if len(sys.argv) > 1 else 220)
