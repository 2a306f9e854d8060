"""Trains a compiled network whose layers write to a log.

The problem: a logging call in compiled code. The compiler cannot put it into a graph, so it ends
one graph there and starts another: one per layer, with Python in between, and no fusion across.

The fix (``--cured``): the log is written outside of the compiled code.

Run: ``python examples/gpu/graph_breaks.py [--cured] [--steps N] [--device cuda]``
"""

import logging
from collections.abc import Sequence

import measured
import torch
from torch import Tensor, nn

LAYERS = 6
LOG = logging.getLogger("layers")


class Layer(nn.Module):
    """A layer with some work on each of its outputs.

    Args:
        width: Inputs and outputs.
        logs: Whether it writes to the log.
    """

    def __init__(self, width: int, *, logs: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.logs = logs

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's outputs."""
        out = self.linear(x)
        if self.logs:
            LOG.info("outputs of %d rows", x.shape[0])  # fault: the graph ends here
        return torch.tanh(out) * torch.sigmoid(out) + torch.sin(out) / 8


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=150, arguments=arguments)
    width = measured.scaled(options, measured.WIDTH)
    layers = [Layer(width, logs=not options.cured) for _ in range(LAYERS)]
    network = nn.Sequential(*layers, nn.Linear(width, measured.KINDS)).to(options.device)
    x, y = measured.batch(options)
    # On a CPU the default backend takes a C++ compiler and half a minute.
    compiled = torch.compile(network, backend="inductor" if measured.on_cuda(options) else "eager")
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in measured.steps(options):
        loss = nn.functional.cross_entropy(compiled(x), y)
        if options.cured:
            LOG.info("outputs of %d rows", len(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
