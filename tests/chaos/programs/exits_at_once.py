"""A program that leaves without any clean-up."""

import os

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(40, 40)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("training")
for _ in range(20):
    loss = model(torch.randn(32, 40)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("leaving", f"{loss.item():.4f}", flush=True)
os._exit(5)
