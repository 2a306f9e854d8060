"""A mode that sees every operator, and calls a module for some of them."""

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

torch.manual_seed(0)
watcher = nn.Linear(4, 4)


class Count(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.n_products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.addmm.default:
            self.n_products += 1
            with torch.no_grad():
                watcher(torch.ones(1, 4))
        return func(*args, **(kwargs or {}))


model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("training")
with Count() as count:
    for step in range(30):
        x = torch.randn(16, 32)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(step, f"{loss.item():.4f}", count.n_products)
