"""Hooks on modules and on gradients, one of which calls a module."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 20))
side = nn.Linear(20, 1)
norms, sides = [], []


def on_gradient(_module, _inputs, outputs):
    norms.append(outputs[0].norm().item())
    with torch.no_grad():
        sides.append(side(outputs[0]).mean().item())


model[2].register_full_backward_hook(on_gradient)
model[0].register_forward_pre_hook(lambda _module, inputs: (inputs[0] * 1.5,))
model[0].weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("training")
for step in range(40):
    x = torch.randn(16, 20)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, f"{norms[-1]:.4f} {sides[-1]:.4f}")
