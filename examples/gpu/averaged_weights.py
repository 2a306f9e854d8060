"""Trains a network of many layers, and averages its weights after every step.

The problem: the average is updated in a loop, with two small kernels per parameter, and the device
waits for their launches.

The fix (``--cured``): one operator for the lists of all parameters.

Run: ``python examples/gpu/averaged_weights.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import nn

LAYERS = 32
WIDTH = 1024
DECAY = 0.999


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the norm of the averages of the last layer's weights."""
    options = measured.options(__doc__, steps=120, arguments=arguments)
    network = measured.network(options, layers=LAYERS, width=WIDTH)
    x, y = measured.batch(options, width=WIDTH)
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
    weights = [weight.detach() for weight in network.parameters()]
    averages = [weight.clone() for weight in weights]
    for _ in measured.steps(options):
        loss = nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if options.cured:
            torch._foreach_lerp_(averages, weights, 1 - DECAY)
        else:
            for average, weight in zip(averages, weights, strict=True):
                average.mul_(DECAY).add_(weight, alpha=1 - DECAY)  # fault: two kernels each
    return measured.told("norm of the averages", averages[-2].norm())


if __name__ == "__main__":
    main()
