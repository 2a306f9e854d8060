"""Trains a transformer encoder with gradient checkpointing of every layer."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
layers = nn.ModuleList(
    nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(3)
)
head = nn.Linear(64, 1)
optimizer = torch.optim.AdamW([*layers.parameters(), *head.parameters()], lr=1e-3)
for step in range(24):
    hidden = torch.randn(4, 24, 64)
    targets = hidden.mean((1, 2))
    for layer in layers:
        hidden = checkpoint(layer, hidden, use_reentrant=step % 2 == 1)
    loss = nn.functional.mse_loss(head(hidden.mean(1)).squeeze(-1), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
