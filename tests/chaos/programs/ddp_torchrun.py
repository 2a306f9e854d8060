"""A rank of a job that torchrun starts."""

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(40, 80), nn.ReLU(), nn.Linear(80, 40)))
optimizer = torch.optim.Adam(model.parameters())
for step in range(24):
    x = torch.randn(32, 40)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and step % 6 == 0:
        print(step, f"{loss.item():.4f}")
distributed.destroy_process_group()
