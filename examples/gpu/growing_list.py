"""Trains a network, and computes at the end how confident it was in each step.

The problem: the scores of every batch are stored for that, in a list that only grows.

The fix (``--cured``): one number per step is stored, computed at once.

Run: ``python examples/gpu/growing_list.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import Tensor, nn

KINDS = 64


def sureness(scores: Tensor) -> Tensor:
    """Return the mean probability of the most likely class."""
    return scores.softmax(1).max(1).values.mean()


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the mean confidence."""
    options = measured.options(__doc__, steps=200, arguments=arguments)
    network = measured.network(options, kinds=KINDS)
    x, y = measured.batch(options, kinds=KINDS)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    outputs: list[Tensor] = []
    for _ in measured.steps(options):
        scores = network(x)
        loss = nn.functional.cross_entropy(scores, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if options.cured:
            outputs.append(sureness(scores.detach()))
        else:
            outputs.append(scores.detach().clone())  # fault: all scores of all steps
    sure = outputs if options.cured else [sureness(scores) for scores in outputs]
    return measured.told("mean sureness", torch.stack(sure).mean())


if __name__ == "__main__":
    main()
