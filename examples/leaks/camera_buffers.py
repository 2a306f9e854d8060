"""Trains on pictures of a camera, and stores the raw buffer of each.

The problem: the buffers stay in the camera. They are plain bytes, and no tensor.

Run: ``python examples/leaks/camera_buffers.py [--steps N]``
"""

import argparse

import torch
from torch import Tensor, nn

WIDTH = 240


class Camera:
    """A camera that stores what it took."""

    def __init__(self) -> None:
        self.taken: list[bytearray] = []

    def take(self) -> Tensor:
        """Return one picture, with numbers from 0 to 1."""
        buffer = bytearray(torch.randint(256, (3 * WIDTH * WIDTH,), dtype=torch.uint8).numpy())
        self.taken.append(buffer)  # fault: of all pictures
        pixels = torch.frombuffer(buffer, dtype=torch.uint8)
        return pixels.reshape(3, WIDTH, WIDTH) / 255


def main() -> None:
    """Train on the mean colors of pictures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    torch.manual_seed(51)
    camera = Camera()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(parser.parse_args().steps):
        color = camera.take().mean((1, 2))
        optimizer.zero_grad()
        (model(color) - color.sum()).square().sum().backward()
        optimizer.step()
    print(f"{len(camera.taken)} pictures")


if __name__ == "__main__":
    main()
