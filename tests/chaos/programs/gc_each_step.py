"""The program collects garbage after each step."""

import gc

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


class Batch:
    def __init__(self):
        self.values = torch.randn(32, 64)
        self.itself = self  # a reference cycle


print("training")
for step in range(25):
    batch = Batch()
    loss = (model(batch.values) - batch.values).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del batch
    gc.collect()
    if step % 6 == 0:
        print(step, f"{loss.item():.4f}")
