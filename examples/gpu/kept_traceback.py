"""Trains a network, and checks it on invalid rows in each step.

The problem: the errors are stored for a summary at the end. An exception retains its traceback,
with the frames that it passed through and their local variables: the rows and their results.

The fix (``--cured``): only the text of the error is stored.

Run: ``python examples/gpu/kept_traceback.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import Tensor, nn

CHECKED = 128


class UnlikelyScoreError(ValueError):
    """A check that failed."""


def check(network: nn.Module, rows: Tensor) -> None:
    """Check that a network is confident about some rows.

    Raises:
        UnlikelyScoreError: If it is not.
    """
    doubled = rows * 2  # fault: a frame of the stored error retains it
    with torch.no_grad():
        n_scores = network(doubled).shape[1]
    raise UnlikelyScoreError(f"none of {n_scores} scores is likely")


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=200, arguments=arguments)
    network = measured.network(options)
    x, y = measured.batch(options)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    errors: list[str | UnlikelyScoreError] = []
    loss = torch.zeros(())
    for _ in measured.steps(options):
        loss = nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        try:
            check(network, x[:CHECKED])
        except UnlikelyScoreError as error:
            errors.append(str(error) if options.cured else error)
    print(f"{len(errors)} checks failed, the last: {errors[-1]}")
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
