"""A network that answers requests, and is then scripted and answers more."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(40, 80), nn.ReLU(), nn.Linear(80, 10))

    def forward(self, x):
        return self.layers(x)


torch.manual_seed(0)
model = Net().eval()
print("answering")
total = 0.0
with torch.no_grad():
    for step in range(60):
        if step == 30:
            model = torch.jit.script(model)
            print("scripted")
        total += model(torch.randn(16, 40)).sum().item()
print(f"{total:.4f}")
