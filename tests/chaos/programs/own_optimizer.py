"""An optimizer that the program writes itself, with hooks around its step."""

import torch
from torch import nn


class SignDescent(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad.sign() * group["lr"])


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(30, 60), nn.Tanh(), nn.Linear(60, 30))
probe = nn.Linear(30, 1)
optimizer = SignDescent(model.parameters(), 1e-3)
seen = []
optimizer.register_step_post_hook(lambda *_: seen.append(probe(torch.ones(30)).item()))
print("training")
for step in range(40):
    x = torch.randn(16, 30)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, f"{loss.item():.4f}", len(seen))
