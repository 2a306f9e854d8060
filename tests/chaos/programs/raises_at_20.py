"""An exception that nobody catches ends the training."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(40, 80), nn.ReLU(), nn.Linear(80, 40))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("training")
for step in range(100):
    width = 41 if step == 20 else 40
    loss = model(torch.randn(32, width)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, f"{loss.item():.4f}")
