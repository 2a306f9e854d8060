"""The loop leaves the loader before its end."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(4000, 20))
model = nn.Linear(20, 20)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("training")
for epoch in range(3):
    for i, (x,) in enumerate(DataLoader(data, batch_size=16, shuffle=True)):
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i == 11:
            break
    print(epoch, i, f"{loss.item():.4f}")
