"""A program that ends with an exit code of its own."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(40, 40)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("training")
for step in range(1000):
    loss = model(torch.randn(32, 40)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 30:
        print("not good enough", f"{loss.item():.4f}")
        sys.exit(3)
