"""Trains on a signal, and stores each step's predictions as arrays to plot them.

The problem: every fiftieth array is plotted in the end, and all of them are stored.

Run: ``python examples/leaks/predictions_as_numpy.py [STEPS]``
"""

import sys

import numpy as np
import torch
from torch import nn

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
rng = np.random.default_rng(22)
torch.manual_seed(22)

t = torch.linspace(0, 6.28, 4000).unsqueeze(1)
signal = torch.sin(3 * t) + torch.from_numpy(rng.normal(0, 0.1, (4000, 1))).float()

net = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters(), lr=0.01)
predictions = []

for _ in range(steps):
    predicted = net(t)  # allocated here
    loss = ((predicted - signal) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    predictions.append(predicted.detach().cpu().numpy())  # fault: all of them

frames = predictions[::50]
print(f"{len(frames)} frames, the last within {np.abs(frames[-1] - signal.numpy()).mean():.3f}")
