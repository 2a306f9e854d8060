"""Much work of NumPy between the steps."""

import numpy as np
import torch
from torch import nn

random = np.random.default_rng(0)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters())
print("training")
for step in range(20):
    signals = random.normal(size=(64, 2048)).cumsum(1)
    spectra = np.abs(np.fft.rfft(signals, axis=1))[:, :64]
    spectra = (spectra - spectra.mean(0)) / spectra.std(0)
    labels = np.array([int(np.sort(row)[-1] > np.median(row) + 3) for row in spectra])
    loss = nn.functional.cross_entropy(
        model(torch.from_numpy(spectra).float()), torch.from_numpy(labels)
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, f"{loss.item():.3f}")
