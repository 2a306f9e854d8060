"""Trains on batches of two lengths in turn, with a fraction of the device's memory.

The program is limited to 1.25 GiB of the device, as if other programs used the rest.

The problem: ``max_split_size_mb``. Activations are larger than that, so their blocks are not split,
and those of long batches are not used for short ones. Both kinds do not fit: in each step PyTorch
frees blocks of one kind and allocates blocks of the other.

The fix (``--cured``): no ``max_split_size_mb``. Short batches use the blocks of long ones.

Run: ``python examples/gpu/allocator_churn.py [--cured] [--steps N] [--device cuda]``
"""

import argparse
from collections.abc import Sequence

import measured
import torch
from torch import nn

ALLOWED_BYTES = 5 << 28
LIMIT = "max_split_size_mb:32"
WIDTH = 1024
LONG = 24576
SHORT = 16384
LAYERS = 6


def set_allocator(options: argparse.Namespace) -> None:
    """Limit this process to a part of the memory, before the first tensor is on the device."""
    if measured.on_cuda(options):
        _, has_bytes = torch.cuda.mem_get_info(options.device)
        torch.cuda.set_per_process_memory_fraction(min(1.0, ALLOWED_BYTES / has_bytes))
        if not options.cured:
            torch.cuda.memory._set_allocator_settings(LIMIT)  # noqa: SLF001  (no other way)


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=60, arguments=arguments)
    set_allocator(options)
    network = measured.network(options, layers=LAYERS, width=WIDTH)
    x, y = measured.batch(options, rows=LONG, width=WIDTH)
    short = measured.scaled(options, SHORT)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    for step in measured.steps(options):
        rows = short if step % 2 else len(x)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(x[:rows]), y[:rows])  # fault: other blocks
        loss.backward()
        optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
