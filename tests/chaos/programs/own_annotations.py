"""The parts of each step have names of the program's own."""

import torch
from torch import nn
from torch.profiler import record_function

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 48))
optimizer = torch.optim.AdamW(model.parameters())


@record_function("prepare")
def make_batch():
    return torch.randn(32, 48)


print("training")
for step in range(40):
    batch = make_batch()
    with record_function("forward"):
        predicted = model(batch)
        with record_function("loss"):
            loss = (predicted - batch).square().mean()
    with record_function("backward"):
        optimizer.zero_grad()
        loss.backward()
    with record_function("update"):
        optimizer.step()
    if step % 10 == 0:
        print(step, f"{loss.item():.4f}")
