"""Two threads, each of which trains a model of its own."""

import threading

import torch
from torch import nn

results = {}


def train(seed):
    random = torch.Generator().manual_seed(seed)
    weights = [torch.randn(20, 20, generator=random) / 5 for _ in range(2)]
    model = nn.Sequential(nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 20))

    with torch.no_grad():
        model[0].weight.copy_(weights[0])
        model[2].weight.copy_(weights[1])
        model[0].bias.zero_()
        model[2].bias.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(40):
        x = torch.randn(32, 20, generator=random)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    results[seed] = loss.item()


print("training")
threads = [threading.Thread(target=train, args=(seed,)) for seed in (1, 2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(", ".join(f"{seed}: {results[seed]:.4f}" for seed in sorted(results)))
