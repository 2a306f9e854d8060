"""Two models that are trained in turns."""

import torch
from torch import nn

torch.manual_seed(0)
models = [nn.Sequential(nn.Linear(40, 80), nn.ReLU(), nn.Linear(80, 40)) for _ in range(2)]
optimizers = [torch.optim.Adam(model.parameters()) for model in models]
print("training")
for step in range(40):
    which = step % 2
    x = torch.randn(32, 40)
    with torch.no_grad():
        target = models[1 - which](x)
    loss = (models[which](x) - target - x).square().mean()
    optimizers[which].zero_grad()
    loss.backward()
    optimizers[which].step()
    if step % 10 == 0:
        print(step, f"{loss.item():.4f}")
