"""Trains with DistributedDataParallel over gloo, in two processes that this one starts."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def train(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    model = nn.parallel.DistributedDataParallel(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        inputs = torch.randn(8, 16)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), inputs[:, :1]).backward()
        optimizer.step()
    if rank == 0:
        print(f"weight {model.module.weight[0, 0].item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, args=(str(Path(folder, "store")),), nprocs=2)
    print("done")
