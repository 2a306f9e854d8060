"""Trains on batches of which every fourth is four times as long, and skips those that do not fit.

The program is limited to 2.5 GiB of the device, so that it runs out of memory quickly.

The problem: every layer's activations are stored for the backward pass. A long batch does not fit.

The fix (``--cured``): ``torch.utils.checkpoint`` stores only those between blocks of layers, and
recomputes the others in the backward pass. On a CPU everything fits.

Run: ``python examples/gpu/out_of_memory.py [--cured] [--steps N] [--device cuda]``
"""

import argparse
from collections.abc import Sequence

import measured
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

ALLOWED_BYTES = 5 << 29
WIDTH = 1024
ROWS = 4096
LONGER = 4
BLOCKS = 6
LAYERS = 4


def limit(options: argparse.Namespace) -> None:
    """Limit this process to a part of the device's memory."""
    if measured.on_cuda(options):
        _, has_bytes = torch.cuda.mem_get_info(options.device)
        torch.cuda.set_per_process_memory_fraction(min(1.0, ALLOWED_BYTES / has_bytes))


def through(blocks: Sequence[nn.Module], x: Tensor, *, checkpointed: bool) -> Tensor:
    """Return the output of all blocks.

    Args:
        checkpointed: Whether the activations inside a block are recomputed in the backward pass.
    """
    if checkpointed:
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x
    for block in blocks:
        x = block(x)  # fault: all activations of all layers are stored
    return x


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=28, arguments=arguments)
    limit(options)
    width = measured.scaled(options, WIDTH)
    blocks = nn.ModuleList(
        nn.Sequential(
            *(part for _ in range(LAYERS) for part in (nn.Linear(width, width), nn.GELU()))
        )
        for _ in range(BLOCKS)
    ).to(options.device)
    last = nn.Linear(width, measured.KINDS).to(options.device)
    x, y = measured.batch(options, rows=ROWS * LONGER, width=WIDTH)
    optimizer = torch.optim.SGD([*blocks.parameters(), *last.parameters()], lr=0.01)
    n_skipped = 0
    loss = torch.zeros(())
    for step in measured.steps(options):
        rows = len(x) if step % LONGER == LONGER - 1 else len(x) // LONGER
        optimizer.zero_grad()
        try:
            scores = last(through(list(blocks), x[:rows], checkpointed=options.cured))
            loss = nn.functional.cross_entropy(scores, y[:rows])
            loss.backward()
        except torch.cuda.OutOfMemoryError:
            n_skipped += 1
            continue
        optimizer.step()
    print(f"{n_skipped} batches did not fit and were skipped")
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
