"""Trains a network, and finds which units of a layer were ever active.

The problem: a hook appends the layer's output of every step to its own list, which lives as long
as the hook, outside of the training loop.

The fix (``--cured``): the hook updates one mask.

Run: ``python examples/gpu/forgotten_hook.py [--cured] [--steps N] [--device cuda]``
"""

import itertools
from collections.abc import Sequence

import measured
import torch
from torch import Tensor, nn

WIDTH = 256


def watch_all(layer: nn.Module, n: int, shares: list[Tensor]) -> None:
    """Store all of a layer's outputs and compute the share of active units after the last one.

    Args:
        n: The number of calls.
        shares: The list for the result.
    """
    kept: list[Tensor] = []

    def remember(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        kept.append(output.detach().clone())  # fault: retained as long as the hook
        if len(kept) == n:
            alive = torch.stack([(activation > 0).any(0) for activation in kept]).any(0)
            shares.append(alive.float().mean())

    layer.register_forward_hook(remember)


def watch_units(layer: nn.Module, n: int, shares: list[Tensor]) -> None:
    """Store one mask of a layer's active units and compute their share after the last call.

    Args:
        n: The number of calls.
        shares: The list for the result.
    """
    alive = [torch.zeros((), dtype=torch.bool)]
    calls = itertools.count(1)

    def note(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        alive[0] = (output.detach() > 0).any(0) | alive[0].to(output.device)
        if next(calls) == n:
            shares.append(alive[0].float().mean())

    layer.register_forward_hook(note)


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the share of units that were ever active."""
    options = measured.options(__doc__, steps=200, arguments=arguments)
    watched = nn.Sequential(
        nn.Linear(measured.KINDS, measured.scaled(options, WIDTH)), nn.ReLU()
    ).to(options.device)
    last = nn.Linear(measured.scaled(options, WIDTH), measured.KINDS).to(options.device)
    network = nn.Sequential(measured.network(options), watched, last)
    shares: list[Tensor] = []
    (watch_units if options.cured else watch_all)(watched, measured.count(options), shares)
    x, y = measured.batch(options)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    for _ in measured.steps(options):
        loss = nn.functional.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return measured.told("share alive", shares[0])


if __name__ == "__main__":
    main()
