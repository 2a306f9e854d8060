"""An actor and a critic on a corridor: one optimizer step per episode."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)


class Corridor:
    def reset(self):
        self.place = 0.0
        return torch.tensor([self.place, 1.0])

    def step(self, action):
        self.place += 0.2 if action else -0.1
        return torch.tensor([self.place, 1.0]), -abs(self.place - 2), self.place > 3


body, actor, critic = nn.Linear(2, 32), nn.Linear(32, 2), nn.Linear(32, 1)
weights = [*body.parameters(), *actor.parameters(), *critic.parameters()]
optimizer = torch.optim.Adam(weights, lr=5e-3)
world = Corridor()
print("training")
for episode in range(20):
    state, logs, values, rewards = world.reset(), [], [], []
    for _ in range(40):
        hidden = torch.relu(body(state))
        policy = Categorical(logits=actor(hidden))
        action = policy.sample()
        logs.append(policy.log_prob(action))
        values.append(critic(hidden).squeeze())
        state, reward, is_over = world.step(action.item())
        rewards.append(reward)
        if is_over:
            break
    returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
    baseline = torch.stack(values)
    loss = -(torch.stack(logs) * (returns - baseline.detach())).mean()
    loss = loss + nn.functional.mse_loss(baseline, returns)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if episode % 5 == 0:
        print(episode, len(rewards), f"{loss.item():.3f}")
