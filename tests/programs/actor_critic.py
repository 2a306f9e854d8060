"""Actor-critic on CartPole: one optimizer step per episode, many small forward passes between."""

import gymnasium
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
environment = gymnasium.make("CartPole-v1")
body = nn.Sequential(nn.Linear(4, 64), nn.ReLU())
actor, critic = nn.Linear(64, 2), nn.Linear(64, 1)
weights = [*body.parameters(), *actor.parameters(), *critic.parameters()]
optimizer = torch.optim.Adam(weights, lr=1e-2)
lengths = []
for episode in range(60):
    state, _ = environment.reset(seed=episode)
    chosen, values, rewards = [], [], []
    for _ in range(200):
        hidden = body(torch.as_tensor(state))
        policy = Categorical(logits=actor(hidden))
        action = policy.sample()
        chosen.append(policy.log_prob(action))
        values.append(critic(hidden).squeeze())
        state, reward, terminated, truncated, _ = environment.step(action.item())
        rewards.append(float(reward))
        if terminated or truncated:
            break
    value, returns = 0.0, []
    for reward in reversed(rewards):
        value = reward + 0.99 * value
        returns.append(value)
    targets = torch.tensor(returns[::-1])
    baseline = torch.stack(values)
    advantage = targets - baseline.detach()
    loss = -(torch.stack(chosen) * advantage).sum()
    loss = loss + nn.functional.smooth_l1_loss(baseline, targets, reduction="sum")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lengths.append(len(rewards))
print("lengths", lengths)
