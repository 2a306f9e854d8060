"""Trains a network, and copies the scores of each batch to the host.

The problem: they are copied to pageable memory, and the host waits for that.

The fix (``--cured``): ``non_blocking=True``, which copies to pinned memory. The scores are used
after the host has waited once, at the end.

Run: ``python examples/gpu/pageable_copy_to_host.py [--cured] [--steps N] [--device cuda]``
"""

import collections
from collections.abc import Sequence

import measured
import torch
from torch import Tensor, nn

BATCHES = 4


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the mean of the last batches' highest scores."""
    options = measured.options(__doc__, steps=300, arguments=arguments)
    network = measured.network(options)
    x, y = measured.batch(options)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    last: collections.deque[Tensor] = collections.deque(maxlen=BATCHES)
    for _ in measured.steps(options):
        scores = network(x)
        loss = nn.functional.cross_entropy(scores, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scores = scores.detach()
        last.append(scores.to("cpu", non_blocking=options.cured))  # fault: the host waits
    return measured.told("mean highest score", torch.stack(tuple(last)).amax(dim=-1).mean())


if __name__ == "__main__":
    main()
