"""A generative adversarial network on points of a circle: two optimizers per step."""

import torch
from torch import nn

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
of_critic = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
for step in range(120):
    angles = torch.rand(64) * 6.283
    real = torch.stack([angles.cos(), angles.sin()], dim=1)
    fake = generator(torch.randn(64, 8))
    loss_critic = criterion(critic(real), ones) + criterion(critic(fake.detach()), zeros)
    of_critic.zero_grad()
    loss_critic.backward()
    of_critic.step()
    loss_generator = criterion(critic(fake), ones)
    of_generator.zero_grad()
    loss_generator.backward()
    of_generator.step()
    if step % 40 == 39:
        print(f"step {step + 1}: {loss_critic.item():.3f} {loss_generator.item():.3f}")
