"""A model that TorchScript runs."""

import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
torch.manual_seed(0)
model = torch.jit.trace(
    nn.Sequential(nn.Linear(30, 60), nn.ReLU(), nn.Linear(60, 30)), torch.randn(16, 30)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("training")
for step in range(40):
    x = torch.randn(16, 30)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, f"{loss.item():.4f}")
