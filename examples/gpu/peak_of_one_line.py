"""Evaluates the last layer of a language model.

The problem: the scores of all tokens are computed at once, and their logarithms beside them: 4 GiB
that determine how large a batch may be.

The fix (``--cured``): 512 rows at a time.

Run: ``python examples/gpu/peak_of_one_line.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import nn
from torch.nn.functional import cross_entropy

WIDTH = 1024
ROWS = 16384
CHUNK = 512
TOKENS = 32768


def main(arguments: Sequence[str] | None = None) -> float:
    """Evaluate and return the last loss."""
    options = measured.options(__doc__, steps=20, arguments=arguments)
    n_tokens = measured.scaled(options, TOKENS)
    x, y = measured.batch(options, rows=ROWS, width=WIDTH, kinds=n_tokens)
    head = nn.Linear(x.shape[1], n_tokens).to(options.device)
    chunk = measured.scaled(options, CHUNK) if options.cured else len(x)
    loss = torch.zeros(())
    with torch.no_grad():
        for _ in measured.steps(options):
            loss = torch.zeros((), device=options.device)
            for rows, labels in zip(x.split(chunk), y.split(chunk), strict=True):
                loss += cross_entropy(head(rows), labels, reduction="sum")  # fault: all rows
    return measured.told("last loss", loss / len(x))


if __name__ == "__main__":
    main()
