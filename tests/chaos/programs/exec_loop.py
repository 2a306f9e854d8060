"""The training loop is a text that the program executes."""

import torch

SOURCE = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(50, 100), nn.ReLU(), nn.Linear(100, 50))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(n_steps):
    x = torch.randn(32, 50)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, f"{loss.item():.4f}")
"""
torch.manual_seed(0)
print("training")
exec(SOURCE, {"n_steps": 40})
