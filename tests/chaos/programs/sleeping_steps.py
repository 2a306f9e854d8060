"""Steps that wait for something else most of their time."""

import time

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(100, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("training")
for step in range(30):
    time.sleep(0.05)
    x = torch.randn(16, 100)
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, f"{loss.item():.4f}")
