"""Trains through a custom rounding operator, and stores each batch's rounding error.

The problem: the operator stores its codes on ``ctx`` as a NumPy array, which ``save_for_backward``
does not accept. ``ctx`` lives as long as the graph, and the graph as long as the stored error.

Run: ``python examples/leaks/ctx_keeps_codes.py [--steps N]``
"""

import argparse
from typing import Any

import torch
from torch import Tensor, nn

LARGEST = 127


class Round(torch.autograd.Function):
    """Rounds to a grid; gradients pass through unchanged inside its range."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:  # noqa: ANN401
        """Return the rounded values."""
        codes = (x.detach() / scale).round().clamp(-LARGEST, LARGEST)  # allocated here
        ctx.codes = codes.cpu().double().numpy()  # allocated here
        return codes * scale

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # noqa: ANN401
        """Return the gradient, where the value was not clipped."""
        inside = torch.from_numpy(abs(ctx.codes) < LARGEST)
        return grads[0] * inside, None


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description="Train with rounded activations.")
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()

    torch.manual_seed(20)
    layer = nn.Linear(40, 120)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    errors = []

    for _ in range(options.steps):
        out = layer(torch.randn(100, 40))
        rounded = Round.apply(out, 0.02)
        error = (rounded - out.detach()).pow(2).mean()  # allocated here
        loss = rounded.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        errors.append(error)  # fault: retained by ctx

    print(f"mean rounding error {sum(error.item() for error in errors) / len(errors):.2e}")


if __name__ == "__main__":
    main()
