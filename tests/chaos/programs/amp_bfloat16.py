"""Autocast to bfloat16 on the CPU."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
print("training")
for step in range(30):
    x, y = torch.randn(64, 128), torch.randint(0, 8, (64,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, f"{loss.item():.3f}")
