"""Trains a network of convolutions on images whose size changes in every step.

The problem: ``torch.backends.cudnn.benchmark = True``. For each new size cuDNN runs several
algorithms of each convolution to choose the fastest, and no later step uses what it found.

The fix (``--cured``): it is left at ``False``. With few sizes it would pay off.

Run: ``python examples/gpu/algorithm_search.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import nn

LAYERS = 3
CHANNELS = 64
IMAGES = 32
LARGEST = 224
SMALLER = 4
"""Pixels that each image has less than the one before, so that no step takes new memory."""


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=20, arguments=arguments)
    torch.backends.cudnn.benchmark = not options.cured
    channels, largest = measured.scaled(options, CHANNELS), measured.scaled(options, LARGEST)
    layers = [nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(LAYERS)]
    parts = [part for layer in layers for part in (layer, nn.ReLU())][:-1]
    last = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, measured.KINDS))
    network = nn.Sequential(*parts, *last).to(options.device)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    shape = (measured.scaled(options, IMAGES), channels, largest, largest)
    images = torch.randn(shape, device=options.device)
    y = torch.randint(measured.KINDS, (len(images),), device=options.device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    for step in measured.steps(options):
        size = max(measured.scaled(options, SMALLER), largest - step * SMALLER)
        x = images[..., :size, :size].to(memory_format=torch.channels_last)
        loss = nn.functional.cross_entropy(network(x), y)  # fault: a search for each size
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
