"""Trains a model behind torch.compile with the backend that needs no compiler."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
inputs = torch.randn(64, 32)
targets = inputs[:, :1].sin()
for step in range(60):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(compiled(inputs), targets)
    loss.backward()
    optimizer.step()
    if step % 20 == 19:
        print(f"step {step + 1}: {loss.item():.4f}")
from torch._dynamo.utils import counters  # noqa: E402

print("graphs", counters["stats"]["unique_graphs"], "breaks", len(counters["graph_break"]))
