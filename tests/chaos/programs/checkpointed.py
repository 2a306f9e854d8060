"""Blocks whose activations are computed again in the backward pass."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
blocks = nn.ModuleList(
    nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(5)
)
optimizer = torch.optim.AdamW(blocks.parameters(), lr=1e-3)
print("training")
for step in range(20):
    x = target = torch.randn(128, 128)
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=step % 2 == 0 and x.requires_grad)
    loss = nn.functional.mse_loss(x, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, f"{loss.item():.4f}")
