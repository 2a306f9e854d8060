"""SIGTERM ends the training after the step, and the program says so."""

import signal
import sys

import torch
from torch import nn

torch.manual_seed(0)
asked = []
signal.signal(signal.SIGTERM, lambda signum, _frame: asked.append(signum))
model = nn.Sequential(nn.Linear(80, 160), nn.ReLU(), nn.Linear(160, 80))
optimizer = torch.optim.Adam(model.parameters())
print("training")
for step in range(200):
    x = torch.randn(64, 80)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(step, f"{loss.item():.4f}")
    if asked:
        print("stopped by SIGTERM")
        sys.exit(0)
