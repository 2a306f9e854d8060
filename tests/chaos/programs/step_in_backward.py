"""Each parameter has an optimizer that steps as soon as its gradient is there."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
optimizers = {p: torch.optim.Adam([p], lr=1e-3) for p in model.parameters()}


def update(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(update)
print("training")
for step in range(40):
    x = torch.randn(64, 64)
    loss = (model(x) - x.roll(1, 1)).square().mean()
    loss.backward()
    if step % 10 == 0:
        print(step, f"{loss.item():.4f}")
