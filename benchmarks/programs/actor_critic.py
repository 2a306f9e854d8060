"""Actor-critic on a pole that is balanced: many calls of a small policy in each step."""

import math

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

N_EPISODES = 50
MAX_MOVES = 60
MAX_ANGLE = 0.4


class Pole:
    """A pole on a cart, in Euler steps of 20 ms."""

    def __init__(self) -> None:
        self.state = (torch.rand(4) / 10 - 0.05).tolist()

    def push(self, action: int) -> bool:
        """Push to the right (1) or left (0). Returns whether the pole still stands."""
        x, speed, angle, turn = self.state
        force = 10.0 if action else -10.0
        pull = (force + 0.05 * turn * turn * math.sin(angle)) / 1.1
        twist = (9.8 * math.sin(angle) - math.cos(angle) * pull) / (
            0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1)
        )
        move = pull - 0.05 * twist * math.cos(angle) / 1.1
        self.state = [
            x + 0.02 * speed,
            speed + 0.02 * move,
            angle + 0.02 * turn,
            turn + 0.02 * twist,
        ]
        return abs(self.state[2]) < MAX_ANGLE


class Policy(nn.Module):
    """The actor and the critic share a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.actor, self.critic = nn.Linear(4, 64), nn.Linear(64, 2), nn.Linear(64, 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probabilities of the actions, and the value of a state."""
        hidden = self.shared(state).relu()
        return self.actor(hidden).softmax(dim=-1), self.critic(hidden)


torch.manual_seed(0)
policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
lengths = []
for _ in range(N_EPISODES):
    pole, taken = Pole(), []
    for _ in range(MAX_MOVES):
        chances, value = policy(torch.tensor(pole.state))
        choice = Categorical(chances)
        action = choice.sample()
        taken.append((choice.log_prob(action), value))
        if not pole.push(int(action)):
            break
    reward, losses = 0.0, []
    for log_chance, value in reversed(taken):
        reward = 1 + 0.99 * reward
        losses += [-log_chance * (reward - value.item()), (value[0] - reward) ** 2 / 100]
    optimizer.zero_grad()
    torch.stack(losses).sum().backward()
    optimizer.step()
    lengths.append(len(taken))
print(sum(lengths))
