"""Each layer has a group of parameters with a learning rate of its own."""

import torch
from torch import nn

torch.manual_seed(0)
layers = [nn.Linear(24, 24) for _ in range(30)]
model = nn.Sequential(*layers)
groups = [{"params": layer.parameters(), "lr": 1e-3 / (i + 1)} for i, layer in enumerate(layers)]
optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
print("training")
for step in range(30):
    x = torch.randn(16, 24)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] *= 0.99
    if step % 10 == 0:
        print(step, f"{loss.item():.4f}")
