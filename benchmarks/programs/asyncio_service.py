"""An asyncio service: clients send lines over TCP, a small network answers each."""

import asyncio
import sys

import torch
from torch import nn

N_CLIENTS = 4
N_REQUESTS = 3000 * int(sys.argv[1] if len(sys.argv) > 1 else 1)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).eval()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one client."""
    while line := await reader.readline():
        with torch.no_grad():
            label = model(torch.full((8, 64), float(line))).argmax(dim=1)[0].item()
        writer.write(b"%d\n" % label)
        await writer.drain()
    writer.close()


async def ask(port: int) -> int:
    """Ask as one client, and return the sum of the answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    total = 0
    for number in range(N_REQUESTS):
        writer.write(b"%d\n" % (number % 7))
        total += int(await reader.readline())
    writer.close()
    return total


async def main() -> None:
    """Serve until every client has its answers."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(sum(await asyncio.gather(*(ask(port) for _ in range(N_CLIENTS)))))
    server.close()


asyncio.run(main())
