"""A generator yields the loss of each step."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(50, 100), nn.ReLU(), nn.Linear(100, 50))
optimizer = torch.optim.Adam(model.parameters())


def batches():
    while True:
        yield torch.randn(32, 50)


def training():
    for batch in batches():
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.item()


print("training")
for step, loss in zip(range(40), training(), strict=False):
    if step % 10 == 0:
        print(step, f"{loss:.4f}")
