"""Trains on labels that are pinned before they are copied to the device.

The problem: the pinned copies are stored, to count the classes at the end. Pinned memory grows with
every step, and the rest of the machine has less.

The fix (``--cured``): the classes are counted at once. A pinned copy is freed once it is on the
device.

Run: ``python examples/gpu/pinned_growth.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import Tensor, nn

BATCHES = 4


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the mean share of the first class."""
    options = measured.options(__doc__, steps=200, arguments=arguments)
    network = measured.network(options)
    x, _ = measured.batch(options)
    batches = torch.randint(measured.KINDS, (BATCHES, len(x)))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    seen: list[Tensor] = []
    shares: list[float] = []
    for step in measured.steps(options):
        labels = batches[step % BATCHES]
        if measured.on_cuda(options):
            labels = labels.pin_memory()  # fault: the list below retains it
        y = labels.to(options.device, non_blocking=True)
        loss = nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if options.cured:
            shares.append(share(labels))
        else:
            seen.append(labels)
    shares += [share(labels) for labels in seen]
    return measured.told("mean share", sum(shares) / len(shares))


def share(labels: Tensor) -> float:
    """Return the share of the first class."""
    return float((labels == 0).float().mean())


if __name__ == "__main__":
    main()
