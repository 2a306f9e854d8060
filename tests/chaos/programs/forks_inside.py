"""A child is forked during the training, and trains a little itself."""

import os

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(30, 30)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train_step():
    x = torch.randn(16, 30)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


print("training")
codes = []
for step in range(30):
    loss = train_step()
    if step % 10 == 5:
        child = os.fork()
        if child == 0:
            total = sum(i * i for i in range(100_000))
            os._exit(4 if total else 5)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if step % 10 == 0:
        print(step, f"{loss:.4f}")
print(codes)
