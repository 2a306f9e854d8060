"""Twenty epochs of three batches each, from the same loader."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(96, 12)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32, shuffle=True)
model = nn.Linear(12, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
print("training")
for epoch in range(20):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 5 == 0:
        print(epoch, f"{loss.item():.4f}")
