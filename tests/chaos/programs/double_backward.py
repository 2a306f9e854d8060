"""A gradient penalty: the gradient itself is differentiated."""

import torch
from torch import nn

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(20, 128), nn.Softplus(), nn.Linear(128, 1))
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
print("training")
for step in range(40):
    real, fake = torch.randn(64, 20) + 1, torch.randn(64, 20)
    mix = torch.rand(64, 1)
    between = (mix * real + (1 - mix) * fake).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    penalty = (slope.norm(dim=1) - 1).square().mean()
    loss = critic(fake).mean() - critic(real).mean() + 10 * penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, f"{penalty.item():.4f}")
