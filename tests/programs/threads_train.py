"""Trains two models in two threads; the main thread waits for them."""

import threading

import torch
from torch import nn

torch.set_num_threads(1)
losses = {}


def train(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Linear(16, 1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(300):
        inputs = torch.randn(32, 16, generator=generator)
        loss = nn.functional.mse_loss(model(inputs), inputs[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    losses[seed] = round(loss.item(), 4)


threads = [threading.Thread(target=train, args=(seed,)) for seed in (1, 2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(losses.items()))
