"""Three thousand steps of a millisecond or less."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]])
y = torch.tensor([[0.0], [1], [1], [0]])
print("training")
for step in range(3000):
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 500 == 0:
        print(step, f"{loss.item():.3f}")
