"""A callback of the garbage collector calls a module."""

import gc

import torch
from torch import nn

torch.manual_seed(0)
probe = nn.Linear(4, 4)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
optimizer = torch.optim.Adam(model.parameters())
n_collections = 0


def on_collection(phase, _info):
    global n_collections
    if phase == "stop":
        n_collections += 1
        with torch.no_grad():
            probe(torch.ones(2, 4))


gc.callbacks.append(on_collection)
gc.set_threshold(200)
print("training")
for step in range(50):
    cycles = [[] for _ in range(300)]
    for cycle in cycles:
        cycle.append(cycle)
    x = torch.randn(16, 32)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, f"{loss.item():.4f}")
gc.callbacks.remove(on_collection)
print(n_collections > 20)
