"""An operator registered with torch.library that calls a module."""

import torch
from torch import nn

torch.manual_seed(0)
inner = nn.Linear(32, 32)


@torch.library.custom_op("chaos::smooth", mutates_args=())
def smooth(x: torch.Tensor) -> torch.Tensor:
    return inner(x).detach() * 0.5 + x * 0.5


def backward(ctx, gradient):
    return gradient * 0.5


smooth.register_autograd(backward)
model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
print("training")
for step in range(40):
    x = torch.randn(16, 32)
    loss = smooth(model(x)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, f"{loss.item():.5f}")
