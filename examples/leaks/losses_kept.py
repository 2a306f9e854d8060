"""Fits a small network to three species of flowers and stores each epoch's loss for a curve.

The problem: the list stores the loss as a tensor, with its autograd graph. Backward frees the
tensors that the graph had saved; its nodes stay, a few kilobytes in each epoch.

Run: ``python examples/leaks/losses_kept.py [EPOCHS]``
"""

import sys

import torch
from torch import nn

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 400
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(4)

# %% data: 120 flowers, 4 measures each, 3 kinds
kinds = torch.randint(3, (120,))
flowers = torch.randn(120, 4) + kinds[:, None]
flowers, kinds = flowers.to(device), kinds.to(device)

# %% model
model = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 3)).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

# %% training
losses = []
for epoch in range(epochs):
    scores = model(flowers)
    loss = criterion(scores, kinds)  # allocated here
    losses.append(loss)  # fault: retains the graph too
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 100 == 0:
        print(f"epoch {epoch}: loss {loss:.4f}")

# %% the curve
print("curve:", " ".join(f"{loss:.2f}" for loss in losses[:: max(epochs // 10, 1)]))
