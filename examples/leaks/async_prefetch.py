"""Prefetches batches in one task, and trains in another.

The problem: the queue between them has no ``maxsize``, and the reader is faster than the trainer.

Run: ``python examples/leaks/async_prefetch.py [--steps N]``
"""

import argparse
import asyncio

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]
STREAMS = 3


async def read(queue: "asyncio.Queue[Batch]") -> None:
    """Read three streams, two of which wait."""
    while True:
        for _ in range(STREAMS):
            images = torch.rand(16, 3, 16, 16)  # allocated here
            queue.put_nowait((images, images.mean((1, 2, 3))))
        await asyncio.sleep(0)


async def train(queue: "asyncio.Queue[Batch]", n: int) -> None:
    """Train for some steps."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(784, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(n):
        images, brightness = await queue.get()
        optimizer.zero_grad()
        nn.functional.l1_loss(model(images).squeeze(-1), brightness).backward()
        optimizer.step()
        await asyncio.sleep(0)
        if step % 50 == 0:
            print(f"{queue.qsize()} batches wait")


async def main(n: int) -> None:
    """Run both tasks."""
    queue: asyncio.Queue[Batch] = asyncio.Queue()  # fault: without maxsize
    reader = asyncio.create_task(read(queue))
    await train(queue, n)
    reader.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=160)
    torch.manual_seed(38)
    asyncio.run(main(parser.parse_args().steps))
