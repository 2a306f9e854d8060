"""REINFORCE on CartPole, with the rewards of the last hundred episodes in a deque."""

from collections import deque

import gymnasium
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
environment = gymnasium.make("CartPole-v1")
policy = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.2), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
recent = deque(maxlen=100)
for episode in range(60):
    state, _ = environment.reset(seed=episode)
    logs, rewards = [], []
    done = False
    while not done and len(rewards) < 200:
        choice = Categorical(logits=policy(torch.from_numpy(state).unsqueeze(0)))
        action = choice.sample()
        logs.append(choice.log_prob(action))
        state, reward, terminated, truncated, _ = environment.step(action.item())
        rewards.append(reward)
        done = terminated or truncated
    recent.append(sum(rewards))
    returns, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + 0.99 * total
        returns.insert(0, total)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    optimizer.zero_grad()
    loss = (-torch.cat(logs) * returns).sum()
    loss.backward()
    optimizer.step()
print(f"{len(recent)} episodes, {sum(recent):.0f} steps")
