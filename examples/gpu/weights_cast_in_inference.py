"""Runs a network of float32 weights on small batches, under ``torch.autocast``.

The problem: nothing trains, so autocast casts every weight in every pass, which moves three times
as many bytes as the products do.

The fix (``--cured``): the network and its inputs are cast once.

Run: ``python examples/gpu/weights_cast_in_inference.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch

LAYERS = 16
ROWS = 64


def main(arguments: Sequence[str] | None = None) -> float:
    """Run all batches and return the mean score of the last one."""
    options = measured.options(__doc__, steps=300, arguments=arguments)
    kind = torch.device(options.device).type
    network = measured.network(options, layers=LAYERS).eval().requires_grad_(requires_grad=False)
    x, _ = measured.batch(options, rows=ROWS)
    if options.cured:
        network, x = network.bfloat16(), x.bfloat16()
    scores = torch.zeros(())
    with torch.inference_mode():
        for _ in measured.steps(options):
            with torch.autocast(kind, dtype=torch.bfloat16, enabled=not options.cured):
                scores = network(x)  # fault: casts all weights
    return measured.told("mean score", scores.float().abs().mean())


if __name__ == "__main__":
    main()
