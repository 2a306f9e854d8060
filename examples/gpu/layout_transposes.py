"""Trains a network of convolutions.

The problem: PyTorch's default layout is NCHW, and the kernels for tensor cores need NHWC: around
each convolution cuDNN transposes inputs, outputs and gradients.

The fix (``--cured``): network and images are converted once, to ``torch.channels_last``.

Run: ``python examples/gpu/layout_transposes.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import nn

LAYERS = 4
CHANNELS = 128
IMAGES = 64
SIZE = 56


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=150, arguments=arguments)
    layout = torch.channels_last if options.cured else torch.contiguous_format
    channels, size = measured.scaled(options, CHANNELS), measured.scaled(options, SIZE)
    layers = [nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(LAYERS)]
    parts = [part for layer in layers for part in (layer, nn.ReLU())][:-1]
    last = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, measured.KINDS))
    network = nn.Sequential(*parts, *last).to(options.device)
    network.to(memory_format=layout)  # type: ignore[call-overload]
    images = torch.randn(measured.scaled(options, IMAGES), channels, size, size)
    x = images.to(options.device, memory_format=layout)
    y = torch.randint(measured.KINDS, (len(x),), device=options.device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in measured.steps(options):
        loss = nn.functional.cross_entropy(network(x), y)  # fault: convolutions of NCHW
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
