"""Evaluation of a model over a loader."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(1280, 3, 16, 16), torch.randint(0, 4, (1280,)))
model = nn.Sequential(
    nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 14 * 14, 4)
).eval()
right = 0
print("evaluating")
with torch.no_grad():
    for images, labels in DataLoader(data, batch_size=32):
        right += (model(images).argmax(1) == labels).sum().item()
print(right, "of", len(data))
