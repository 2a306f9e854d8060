"""Trains a policy and a value function on rollouts, each of which a buffer stores.

The problem: the buffer is never cleared after an update, and its log-probabilities and values have
their graphs.

Run: ``python examples/leaks/rollouts_kept.py [--updates N]``
"""

import argparse

import torch
from torch import Tensor, nn

AGENTS = 128


class Rollouts:
    """What the agents have seen, done and received."""

    def __init__(self) -> None:
        self.states: list[Tensor] = []
        self.log_probs: list[Tensor] = []
        self.values: list[Tensor] = []

    def add(self, state: Tensor, log_prob: Tensor, value: Tensor) -> None:
        """Store one step of all agents."""
        self.states.append(state)
        self.log_probs.append(log_prob)
        self.values.append(value)  # fault: and nothing is removed after an update


def main() -> None:
    """Train for some updates."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=150)
    torch.manual_seed(71)
    body = nn.Sequential(nn.Linear(24, 64), nn.Tanh())
    policy, critic = nn.Linear(64, 4), nn.Linear(64, 1)
    parameters = [*body.parameters(), *policy.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-4)
    rollouts = Rollouts()

    for _ in range(parser.parse_args().updates):
        state = torch.randn(AGENTS, 24)  # allocated here
        hidden = body(state)
        choices = policy(hidden).log_softmax(1)
        action = choices.exp().multinomial(1)
        log_prob = choices.gather(1, action)  # allocated here
        value = critic(hidden)  # allocated here
        rollouts.add(state, log_prob, value)

        reward = torch.randn(AGENTS, 1)
        advantage = reward - value.detach()
        loss = (value - reward).pow(2).mean() - (log_prob * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    print(f"{torch.cat(rollouts.values).mean().item():.3f}")


if __name__ == "__main__":
    main()
