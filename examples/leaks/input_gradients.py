"""Trains, and collects the gradients of the inputs, for a saliency map.

The problem: a hook on the input tensor appends each gradient to a list that is never cleared.

Run: ``python examples/leaks/input_gradients.py [--steps N]``
"""

import argparse

import torch
from torch import Tensor, nn


class Saliency:
    """Collects the gradients of inputs."""

    def __init__(self) -> None:
        self.gradients: list[Tensor] = []

    def follow(self, inputs: Tensor) -> Tensor:
        """Collect the gradient of some inputs."""
        inputs.requires_grad_()
        inputs.register_hook(self.gradients.append)  # fault: never cleared
        return inputs

    def map(self) -> Tensor:
        """How much each input matters on average."""
        return torch.stack([gradient.abs().mean(0) for gradient in self.gradients]).mean(0)


def main() -> None:
    """Train and print the saliency."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=170)
    steps = parser.parse_args().steps

    torch.manual_seed(30)
    model = nn.Sequential(nn.Linear(100, 50), nn.Softplus(), nn.Linear(50, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    saliency = Saliency()

    for _ in range(steps):
        x = saliency.follow(torch.randn(256, 100))
        y = x.detach()[:, 3:4] * 2
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # allocated here
        optimizer.step()

    print(f"input {saliency.map().argmax().item()} matters most")


if __name__ == "__main__":
    main()
