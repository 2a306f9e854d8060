"""Ctrl-C ends the training, and the program says so."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(80, 160), nn.ReLU(), nn.Linear(160, 80))
optimizer = torch.optim.Adam(model.parameters())


def train():
    for step in range(200):
        x = torch.randn(64, 80)
        loss = (model(x) - x).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(step, f"{loss.item():.4f}")


try:
    print("training")
    train()
except KeyboardInterrupt:
    print("interrupted")
    raise SystemExit(7) from None
