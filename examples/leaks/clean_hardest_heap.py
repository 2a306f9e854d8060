"""Trains, and stores the twenty hardest batches so far in a heap.

No leak: a harder batch replaces the easiest of the twenty.

Run: ``python examples/leaks/clean_hardest_heap.py [STEPS]``
"""

import heapq
import sys

import torch
from torch import Tensor, nn

KEPT = 20

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
torch.manual_seed(59)
model = nn.Sequential(nn.Linear(200, 50), nn.ReLU(), nn.Linear(50, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
hardest: list[tuple[float, int, Tensor]] = []

for step in range(steps):
    x = torch.randn(100, 200) * (1 + torch.rand(()))
    loss = nn.functional.mse_loss(model(x).squeeze(1), x.abs().max(1).values)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    entry = (loss.item(), step, x)
    if len(hardest) < KEPT:
        heapq.heappush(hardest, entry)
    else:
        heapq.heappushpop(hardest, entry)

print("hardest steps:", sorted(step for _, step, _ in hardest))
