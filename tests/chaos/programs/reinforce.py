"""REINFORCE: a hundred calls of a small policy per step of the optimizer."""

import torch
from torch import nn

torch.manual_seed(2)
policy = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 3))
optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-3)
print("training")
for episode in range(25):
    position, logs, earned = torch.zeros(3), [], 0.0
    for _ in range(100):
        probabilities = policy(position).softmax(-1)
        move = torch.multinomial(probabilities, 1).item()
        logs.append(probabilities[move].log())
        position = 0.9 * position
        position[move] += 0.1
        earned += float(position[0]) - float(position[1])
    loss = -torch.stack(logs).sum() * earned / 100
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if episode % 8 == 0:
        print(episode, f"{earned:.3f}")
