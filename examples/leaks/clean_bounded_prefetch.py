"""Prefetches batches in one task, limited by the queue between the two tasks.

No leak: the reader is only a little faster, so the queue fills up over half of the run.

Run: ``python examples/leaks/clean_bounded_prefetch.py [--batches N]``
"""

import argparse
import asyncio

import torch
from torch import Tensor, nn

AHEAD = 24
TOGETHER = 4


async def read(queue: "asyncio.Queue[Tensor | None]", n: int) -> None:
    """Read ahead, and signal the end."""
    for number in range(n):
        await queue.put(torch.randn(32, 512))
        if number % TOGETHER:
            await asyncio.sleep(0)
    await queue.put(None)


async def train(queue: "asyncio.Queue[Tensor | None]") -> None:
    """Train until the end."""
    model = nn.Sequential(nn.Linear(512, 24), nn.ReLU(), nn.Linear(24, 512))
    optimizer = torch.optim.Adam(model.parameters())
    while (batch := await queue.get()) is not None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(batch), batch).backward()
        optimizer.step()
        await asyncio.sleep(0)


async def main(n: int) -> None:
    """Run both tasks."""
    queue: asyncio.Queue[Tensor | None] = asyncio.Queue(maxsize=AHEAD)
    await asyncio.gather(read(queue, n), train(queue))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=200)
    torch.manual_seed(44)
    asyncio.run(main(parser.parse_args().batches))
