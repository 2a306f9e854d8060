"""Trains a network, and watches which units of a layer were ever alive.

The fault: a hook puts the layer's output of every step into a list of its own, which lives as long
as the hook, out of the training loop's sight.

The cure (``--cured``): the hook brings one mask up to date.

Run: ``python examples/gpu/forgotten_hook.py [--cured] [--steps N] [--device cuda]``
"""

import itertools
from collections.abc import Sequence

import measured
import torch
from torch import Tensor, nn

WIDTH = 256


def watch_all(layer: nn.Module, n: int, shares: list[Tensor]) -> None:
    """Keep all of a layer's outputs, to say after the last which share of its units was alive.

    Args:
        layer: The layer.
        n: How often it will be called.
        shares: Where to put the share.
    """
    kept: list[Tensor] = []

    def remember(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        kept.append(output.detach().clone())  # fault: kept as long as the hook
        if len(kept) == n:
            alive = torch.stack([(one > 0).any(0) for one in kept]).any(0)
            shares.append(alive.float().mean())

    layer.register_forward_hook(remember)


def watch_units(layer: nn.Module, n: int, shares: list[Tensor]) -> None:
    """Keep which of a layer's units were alive so far, and say after the last which share was.

    Args:
        layer: The layer.
        n: How often it will be called.
        shares: Where to put the share.
    """
    alive = [torch.zeros((), dtype=torch.bool)]
    calls = itertools.count(1)

    def note(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        alive[0] = (output.detach() > 0).any(0) | alive[0].to(output.device)
        if next(calls) == n:
            shares.append(alive[0].float().mean())

    layer.register_forward_hook(note)


def main(arguments: Sequence[str] | None = None) -> float:
    """Train; the share of units that were ever alive."""
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
