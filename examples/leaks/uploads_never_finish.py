"""Trains in an async program that uploads the model's outputs meanwhile.

The problem: every upload waits for a semaphore that is never released. References to the tasks are
stored, as asyncio's documentation requires, and each retains its tensor.

Run: ``python examples/leaks/uploads_never_finish.py [--steps N]``
"""

import argparse
import asyncio

import torch
from torch import Tensor, nn


class Uploader:
    """Uploads tensors, a limited number at a time."""

    def __init__(self, lines: int) -> None:
        self.line = asyncio.Semaphore(lines)
        self.tasks: set[asyncio.Task[None]] = set()

    def start(self, outputs: Tensor) -> None:
        """Start an upload."""
        task = asyncio.create_task(self.upload(outputs))
        self.tasks.add(task)  # fault: no task is ever done
        task.add_done_callback(self.tasks.discard)

    async def upload(self, outputs: Tensor) -> None:
        """Wait for the semaphore, and upload."""
        await self.line.acquire()
        await asyncio.sleep(0)
        del outputs


async def train(steps: int) -> None:
    """Train, and upload each step's output."""
    uploader = Uploader(lines=1)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    optimizer = torch.optim.Adam(model.parameters())

    for _ in range(steps):
        x = torch.randn(400, 64)
        outputs = model(x)
        loss = (outputs - x.flip(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        uploader.start(outputs.detach().sigmoid())  # allocated here
        await asyncio.sleep(0)

    print(f"loss {loss.item():.4f}; {len(uploader.tasks)} uploads still to do")
    for task in uploader.tasks:
        task.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=110)
    torch.manual_seed(17)
    asyncio.run(train(parser.parse_args().steps))
