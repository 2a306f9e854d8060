"""A loader with two workers; the data set computes a little for each item."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    def __len__(self):
        return 480

    def __getitem__(self, index):
        time = torch.linspace(0, 6.28, 256)
        return torch.sin(time * (1 + index % 7)), index % 7


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 7))
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(Waves(), batch_size=20, shuffle=True, num_workers=2)
    print("training")
    losses = []
    for waves, labels in loader:
        loss = nn.functional.cross_entropy(model(waves), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(len(losses), f"{losses[-1]:.4f}")
