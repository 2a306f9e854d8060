"""Fits a small network and stores the loss and learning rate of every epoch as plain numbers.

No leak: a number retains no graph. ``losses_kept.py`` stores the tensors.

Run: ``python examples/leaks/clean_losses_as_floats.py [EPOCHS]``
"""

import sys

import torch
from torch import nn

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 400
torch.manual_seed(40)
kinds = torch.randint(3, (120,))
flowers = torch.randn(120, 4) + kinds[:, None]

model = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 3))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)

losses, rates, grad_norms = [], [], []
for _ in range(epochs):
    loss = criterion(model(flowers), kinds)
    optimizer.zero_grad()
    loss.backward()
    grad_norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
    optimizer.step()
    scheduler.step()
    losses.append(loss.item())
    rates.append(scheduler.get_last_lr()[0])

print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}, rate {rates[0]:.3g} to {rates[-1]:.3g}")
print(f"largest gradient {max(grad_norms):.3f}")
