"""Each epoch trains and then validates, with a loader for each."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(640, 30)
data = TensorDataset(x, (x[:, 0] > x[:, 1]).long())
training = DataLoader(data, batch_size=64, shuffle=True)
validation = DataLoader(data, batch_size=160)
model = nn.Sequential(nn.Linear(30, 60), nn.ReLU(), nn.Linear(60, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
print("training")
for epoch in range(4):
    model.train()
    for inputs, labels in training:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(a).argmax(1) == b).sum().item() for a, b in validation)
    print(epoch, right)
