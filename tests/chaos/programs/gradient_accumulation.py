"""Gradients of four small batches are added up before each step."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 5)
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
N_PARTS = 4
print("training")
running = 0.0
for batch in range(80):
    inputs, targets = torch.randn(32, 200), torch.randint(0, 5, (32,))
    loss = nn.functional.cross_entropy(model(inputs), targets) / N_PARTS
    loss.backward()
    running += loss.item()
    if (batch + 1) % N_PARTS == 0:
        optimizer.step()
        optimizer.zero_grad()
        if batch % 20 == 19:
            print(batch, f"{running:.4f}")
        running = 0.0
