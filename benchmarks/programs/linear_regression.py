"""A polynomial fitted by a linear layer, as in pytorch/examples/regression."""

import torch
from torch import nn

N_STEPS = 15_000

torch.manual_seed(0)
powers = torch.randn(4, 1) * 5
layer = nn.Linear(4, 1)
for _ in range(N_STEPS):
    x = torch.randn(32, 1)
    features = torch.cat([x**k for k in range(1, 5)], dim=1)
    layer.zero_grad()
    loss = nn.functional.smooth_l1_loss(layer(features), features @ powers)
    loss.backward()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.sub_(0.1 * torch.as_tensor(parameter.grad))
print(f"{loss.item():.6f}")
