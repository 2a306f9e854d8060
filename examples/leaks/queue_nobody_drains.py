"""Trains while another thread draws the images that the model generates.

The problem: the thread has ended at an image that it cannot draw. The training continues to fill
its queue.

Run: ``python examples/leaks/queue_nobody_drains.py [STEPS]``
"""

import queue
import sys
import threading

import torch
from torch import Tensor, nn


class Painter:
    """Draws images in its own thread."""

    def __init__(self) -> None:
        self.waiting: queue.Queue[Tensor | None] = queue.Queue()
        self.drawn = 0
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self) -> None:
        """Draw until the end of the queue."""
        while (picture := self.waiting.get()) is not None:
            if picture.max() > 1:
                print("painter: a picture is too bright", file=sys.stderr)
                return
            self.drawn += 1

    def draw(self, picture: Tensor) -> None:
        """Enqueue an image."""
        self.waiting.put(picture)  # fault: nothing takes them out


def main(steps: int) -> None:
    """Train a generator of images."""
    torch.manual_seed(15)
    painter = Painter()
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 3 * 32 * 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(steps):
        pictures = model(torch.randn(8, 10))
        loss = (pictures - 1.2).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        painter.draw(pictures.detach().view(8, 3, 32, 32) + 0.9)  # allocated here
    painter.waiting.put(None)
    painter.thread.join()
    print(f"{painter.drawn} of {steps} drawn")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 140)
