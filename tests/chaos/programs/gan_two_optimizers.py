"""A generator and a discriminator, each with an optimizer of its own."""

import torch
from torch import nn

torch.manual_seed(3)
maker = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 64))
judge = nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))
for_maker = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.999))
for_judge = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
real, fake = torch.ones(64, 1), torch.zeros(64, 1)
print("training")
for step in range(60):
    samples = torch.randn(64, 64).cumsum(1) / 8
    made = maker(torch.randn(64, 16))

    for_judge.zero_grad()
    judged = criterion(judge(samples), real) + criterion(judge(made.detach()), fake)
    judged.backward()
    for_judge.step()

    for_maker.zero_grad()
    fooled = criterion(judge(made), real)
    fooled.backward()
    for_maker.step()
    if step % 20 == 0:
        print(step, f"{judged.item():.4f} {fooled.item():.4f}")
print("end")
