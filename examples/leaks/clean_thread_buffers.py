"""Crops images in a thread pool, with one buffer per thread.

No leak: threads and buffers are created on demand, up to the size of the pool.

Run: ``python examples/leaks/clean_thread_buffers.py [STEPS]``
"""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

thread_buffers = threading.local()


def crop(picture: Tensor, corner: int) -> Tensor:
    """Return the mean color of a part, computed in the thread's buffer."""
    if not hasattr(thread_buffers, "buffer"):
        thread_buffers.buffer = torch.empty(3, 64, 64)
    time.sleep(0.0002)
    thread_buffers.buffer.copy_(picture[:, corner : corner + 64, corner : corner + 64])
    buffer: Tensor = thread_buffers.buffer
    return buffer.mean((1, 2))


def main(steps: int) -> None:
    """Crop, and train."""
    torch.manual_seed(41)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    with ThreadPoolExecutor(max_workers=12) as pool:
        for step in range(steps):
            pictures = torch.rand(min(2 + step // 6, 14), 3, 80, 80)
            crops = list(pool.map(crop, pictures, range(len(pictures))))
            loss = model(torch.stack(crops)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 190)
