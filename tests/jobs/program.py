"""An ordinary distributed training, with a planted fault: ``program.py PARALLEL FAULT``.

Each rank computes some fifteen milliseconds per step besides what the fault adds on one of them.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

WIDTH = 256
BATCH = 256
PRODUCTS = 40
"""Matrix products of a step, half of what a rank computes in it: five percent of it are five."""

N_STEPS = 60

parallel, fault = sys.argv[1], sys.argv[2]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(0)
weights = torch.randn(280, 280)
slow = rank == 1


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return BATCH * N_STEPS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if fault == "data" and slow:
            time.sleep(20e-3 / BATCH)
        return torch.ones(WIDTH), torch.tensor(index % 10)


def multiply(n: int) -> None:
    for _ in range(n):
        weights @ weights


def count(n: int) -> int:
    return sum(i * i for i in range(n))


def compute_loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    loss = nn.functional.cross_entropy(outputs, labels)
    if fault == "metrics" and rank == 0:
        ordered = outputs.detach().repeat(120, 1).sort(dim=0).values
        ordered.cumsum(0)
    return loss


def add_fault(step: int) -> None:
    if fault == "compute5" and slow:
        multiply(PRODUCTS // 8)
    if fault == "compute50" and slow:
        multiply(PRODUCTS)
    if fault == "sleep5" and slow:
        time.sleep(2e-3)
    if fault == "sleep50" and slow:
        time.sleep(15e-3)
    if fault == "python50" and slow:
        count(250_000)
    if fault == "moving" and (step // 10) % world == rank:
        time.sleep(15e-3)
    if fault == "uneven":
        multiply((37 * step + 11 * rank * (step % 7)) % 60)


def fail(step: int) -> None:
    if step != N_STEPS // 2 or rank != 1:
        return
    if fault == "crash":
        raise ValueError("bad batch")
    if fault == "exit":
        sys.exit(3)
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "oom":
        torch.empty(1 << 45)
    if fault == "hang":
        time.sleep(1000)
    if fault == "mismatch":
        dist.all_reduce(torch.ones(7))


def slow_hook(gradient: torch.Tensor) -> torch.Tensor:
    multiply(PRODUCTS)
    return gradient


def build_model() -> nn.Module:
    layers: list[nn.Module] = [
        nn.Linear(WIDTH, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    ]
    model: nn.Module = nn.Sequential(*layers)
    if fault == "hook" and slow:
        next(layers[2].parameters()).register_hook(slow_hook)
    if parallel == "ddp":
        return DistributedDataParallel(model)
    if parallel == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (world,))
        for layer in layers:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)  # type: ignore[return-value]
    if parallel == "tp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        mesh = init_device_mesh("cpu", (world,))
        return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model


def train() -> None:
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (inputs, labels) in enumerate(DataLoader(Samples(), batch_size=BATCH)):
        optimizer.zero_grad()
        multiply(PRODUCTS)
        add_fault(step)
        loss = compute_loss(model(inputs), labels)
        loss.backward()
        fail(step)
        optimizer.step()


def train_pipeline() -> None:
    from torch.distributed import pipelining

    n_layers = 24 if fault == "stage" and slow else 8
    stage_module = nn.Sequential(
        *[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(n_layers)]
    )
    if fault == "hook" and slow:
        next(stage_module.parameters()).register_hook(slow_hook)
    stage = pipelining.PipelineStage(stage_module, rank, world, torch.device("cpu"))
    kind = {"1f1b": pipelining.Schedule1F1B, "gpipe": pipelining.ScheduleGPipe}[parallel]
    schedule = kind(stage, n_microbatches=4, loss_fn=nn.MSELoss())
    optimizer = torch.optim.SGD(stage_module.parameters(), lr=0.01)
    for step in range(N_STEPS):
        optimizer.zero_grad()
        add_fault(step)
        if rank == 0:
            schedule.step(torch.randn(BATCH, WIDTH))
        elif rank == world - 1:
            schedule.step(target=torch.randn(BATCH, WIDTH))
        else:
            schedule.step()
        fail(step)
        optimizer.step()


if parallel in {"1f1b", "gpipe"}:
    train_pipeline()
else:
    train()
print(f"done {rank}")
dist.destroy_process_group()
