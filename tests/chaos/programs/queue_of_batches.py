"""A thread prepares batches that the main thread takes from a queue."""

import queue
import threading

import torch
from torch import nn

torch.manual_seed(0)
prepared = queue.Queue(maxsize=4)


def prepare():
    random = torch.Generator().manual_seed(1)
    for _ in range(40):
        prepared.put(torch.randn(64, 32, generator=random).sort(1).values)
    prepared.put(None)


model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
optimizer = torch.optim.Adam(model.parameters())
threading.Thread(target=prepare, daemon=True).start()
print("training")
step = 0
while (batch := prepared.get()) is not None:
    loss = (model(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 10 == 0:
        print(step, f"{loss.item():.4f}")
