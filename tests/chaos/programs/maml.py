"""Meta-learning: an inner optimizer adapts a copy, an outer one updates the start."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
start = nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 1))
outer = torch.optim.Adam(start.parameters(), lr=1e-3)
print("training")
for meta_step in range(15):
    outer.zero_grad()
    for _task in range(3):
        amplitude = 0.5 + 4 * torch.rand(1)
        x = torch.rand(20, 1) * 10 - 5
        y = amplitude * x.sin()

        adapted = copy.deepcopy(start)
        inner = torch.optim.SGD(adapted.parameters(), lr=0.01)
        for _ in range(4):
            inner.zero_grad()
            nn.functional.mse_loss(adapted(x), y).backward()
            inner.step()

        adapted.zero_grad()
        loss = nn.functional.mse_loss(adapted(x), y)
        loss.backward()
        for weight, learned in zip(start.parameters(), adapted.parameters(), strict=True):
            weight.grad = learned.grad if weight.grad is None else weight.grad + learned.grad
    outer.step()
    if meta_step % 5 == 4:
        print(meta_step, f"{loss.item():.3f}")
