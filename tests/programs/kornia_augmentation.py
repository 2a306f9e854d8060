"""Augments images with Kornia on the fly while a network trains on them."""

import kornia.augmentation as augment
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
change = augment.AugmentationSequential(
    augment.RandomHorizontalFlip(),
    augment.RandomAffine(degrees=10.0),
    augment.ColorJitter(0.1, 0.1, 0.1, 0.1),
    data_keys=["input"],
)
data = TensorDataset(torch.rand(128, 3, 24, 24), torch.randint(0, 4, (128,)))
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4)
)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):
    total = 0.0
    for images, labels in DataLoader(data, batch_size=16, shuffle=True):
        with torch.no_grad():
            changed = change(images)
        loss = nn.functional.cross_entropy(model(changed), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}: {total:.3f}")
