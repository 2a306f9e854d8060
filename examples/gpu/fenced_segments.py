"""Trains, computes a few versions of an image in each step, and retains a small part of them.

The problem: ``max_split_size_mb`` together with ``expandable_segments``. The versions are adjacent,
the retained part follows them. Freed, they merge into a block above the limit, which no smaller
tensor may use, and the retained part is between that block and the end, where the segment could
grow. So each step takes new memory: the case of pytorch #193400.

The fix (``--cured``): no ``max_split_size_mb``. Expandable segments need no such limit.

Run: ``python examples/gpu/fenced_segments.py [--cured] [--steps N] [--device cuda]``
"""

import argparse
import collections
from collections.abc import Sequence

import measured
import torch
from torch import Tensor, nn

MIB = 1 << 20
VERSIONS = 4
PICTURE_BYTES = 48 * MIB
KEPT_BYTES = 2 * MIB
KEPT = 8
TIMES = 20
WIDTH = 256
"""Small, so that the versions alone take large pieces of memory."""
LIMIT = "max_split_size_mb:128"


def set_allocator(options: argparse.Namespace) -> None:
    """Apply ``PYTORCH_ALLOC_CONF`` settings, before the first tensor is on the device."""
    if measured.on_cuda(options):
        settings = ["expandable_segments:True", *([] if options.cured else [LIMIT])]
        torch.cuda.memory._set_allocator_settings(",".join(settings))  # noqa: SLF001  (no other way)


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and compare; returns the sum of what was retained last."""
    options = measured.options(__doc__, steps=60, arguments=arguments)
    set_allocator(options)
    network = measured.network(options, width=WIDTH)
    x, y = measured.batch(options, rows=WIDTH, width=WIDTH)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    numbers = measured.scaled(options, PICTURE_BYTES // 4)
    part = measured.scaled(options, KEPT_BYTES // 4)
    recent: collections.deque[Tensor] = collections.deque(maxlen=KEPT)
    for step in measured.steps(options):
        loss = nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        versions = []
        for _ in range(VERSIONS):
            versions.append(torch.zeros(numbers, device=options.device))  # fault: new memory
            for _ in range(TIMES):
                versions[-1].mul_(0.5).add_(step)
        recent.append(versions[-1][:part].clone())
        del versions
    return measured.told("kept", torch.stack(tuple(recent)).sum())


if __name__ == "__main__":
    main()
