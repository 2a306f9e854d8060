"""An inference service in asyncio: clients put requests into a queue, a worker batches them."""

import asyncio

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 4)).eval()


async def serve(queue: "asyncio.Queue[tuple[torch.Tensor, asyncio.Future[int]]]") -> None:
    while True:
        batch = [await queue.get()]
        while not queue.empty() and len(batch) < 8:
            batch.append(queue.get_nowait())
        with torch.inference_mode():
            classes = model(torch.stack([request for request, _ in batch])).argmax(1)
        for (_, answer), value in zip(batch, classes.tolist(), strict=True):
            answer.set_result(value)


async def main() -> None:
    queue: asyncio.Queue[tuple[torch.Tensor, asyncio.Future[int]]] = asyncio.Queue()
    worker = asyncio.create_task(serve(queue))
    requests = torch.randn(1500, 32)

    async def client(first: int) -> list[int]:
        answers = []
        for request in requests[first::5]:
            answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            await queue.put((request, answer))
            answers.append(await answer)
        return answers

    answers = await asyncio.gather(*(client(first) for first in range(5)))
    worker.cancel()
    print("classes", torch.bincount(torch.tensor(answers).flatten(), minlength=4).tolist())


asyncio.run(main())
