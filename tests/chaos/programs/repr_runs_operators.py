"""Objects whose text is computed with operators and modules, and modules with such a text."""

from dataclasses import dataclass

import torch
from torch import nn

torch.manual_seed(0)
judge = nn.Linear(8, 1)


@dataclass(repr=False)
class Sample:
    values: torch.Tensor

    def __repr__(self):
        with torch.no_grad():
            return f"Sample({judge(self.values).mean().item():.3f})"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, sample):
        return self.layer(sample.values) @ torch.eye(8)

    def __repr__(self):
        return f"Net({self.layer.weight.norm().item():.3f})"


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
print("training")
for step in range(40):
    sample = Sample(torch.randn(16, 8))
    loss = (net(sample) - sample.values).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, net, sample)
