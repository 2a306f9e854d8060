"""Several blocks that torch.compile traces, with the backend that needs no compiler."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


torch.manual_seed(0)
blocks = [torch.compile(Block(64), backend="eager") for _ in range(6)]
model = nn.Sequential(*blocks, nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
print("training")
for step in range(25):
    x = torch.randn(32, 64)
    loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 8 == 0:
        print(step, f"{loss.item():.4f}")
