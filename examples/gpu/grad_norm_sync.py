"""Trains a network, and clips its gradients in each step.

The problem: ``error_if_nonfinite=True``. The host reads whether the norm is finite, and waits for
the backward pass. The device is then idle until the host has launched the optimizer's step.

The fix (``--cured``): ``clip_grad_norm_`` without it. The norm is read once, at the end.

Run: ``python examples/gpu/grad_norm_sync.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

MAX_NORM = 0.1


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last norm."""
    options = measured.options(__doc__, steps=300, arguments=arguments)
    network = measured.network(options)
    x, y = measured.batch(options)
    checks = not options.cured
    parameters = list(network.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    norm = torch.zeros(())
    for _ in measured.steps(options):
        loss = nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        norm = clip_grad_norm_(parameters, MAX_NORM, error_if_nonfinite=checks)  # fault: a read
        optimizer.step()
    return measured.told("last norm", norm)


if __name__ == "__main__":
    main()
