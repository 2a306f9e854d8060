"""Trains with torch.multiprocessing in the way of Hogwild: spawned processes, one shared model."""

import torch
import torch.multiprocessing as mp
from torch import nn


def train(seed: int, model: nn.Module, done: "mp.SimpleQueue[int]") -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(50):
        inputs = torch.randn(16, 8)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True)).backward()
        optimizer.step()
    done.put(seed)


def main() -> None:
    context = mp.get_context("spawn")
    model = nn.Linear(8, 1)
    model.share_memory()
    done = context.SimpleQueue()
    workers = [context.Process(target=train, args=(seed, model, done)) for seed in range(2)]
    for worker in workers:
        worker.start()
    print("seeds", sorted(done.get() for _ in workers))
    for worker in workers:
        worker.join()
    print("exit codes", [worker.exitcode for worker in workers])


if __name__ == "__main__":
    main()
