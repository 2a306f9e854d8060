"""A program that profiles some of its steps itself."""

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
optimizer = torch.optim.Adam(model.parameters())


def train(profiler, n_steps):
    for step in range(n_steps):
        x = torch.randn(64, 64)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if profiler is not None:
            profiler.step()
        if step % 10 == 0:
            print(step, f"{loss.item():.4f}")


print("training")
train(None, 30)
plan = schedule(wait=2, warmup=1, active=3, repeat=1)
with profile(activities=[ProfilerActivity.CPU], schedule=plan, acc_events=True) as profiler:
    train(profiler, 20)
names = {event.key for event in profiler.key_averages()}
print("aten::addmm" in names, "ProfilerStep*" in names)
