"""The training runs under cProfile."""

import cProfile
import io
import pstats

import torch
from torch import nn

torch.manual_seed(0)


def train():
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(30):
        x = torch.randn(64, 64)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(step, f"{loss.item():.4f}")


print("training")
profiler = cProfile.Profile()
profiler.runcall(train)
text = io.StringIO()
pstats.Stats(profiler, stream=text).sort_stats("cumulative").print_stats()
print("(train)" in text.getvalue())
