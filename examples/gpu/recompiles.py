"""Trains a compiled network on batches of new lengths.

The problem: ``torch.compile(..., dynamic=False)``. Compiled code is valid for one length, so each
new one is a recompilation during training. The limit of eight versions, after which PyTorch stops
compiling, is raised, as its warning suggests.

The fix (``--cured``): ``dynamic=True``. The length is a variable of the compiled code. The backend
returns the graph unchanged, since compiling is what takes time here; it needs no C compiler.

Run: ``python examples/gpu/recompiles.py [--cured] [--steps N] [--device cuda]``
"""

import argparse
from collections.abc import Sequence

import measured
import torch
from torch import nn

SHORTEST = 2048
LONGER = 16
VERSIONS = 200


def own(parser: argparse.ArgumentParser) -> None:
    """Add this program's own arguments."""
    parser.add_argument("--backend", default="aot_eager", help="what torch.compile hands graphs to")


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=20, arguments=arguments, more=own)
    shortest, longer = measured.scaled(options, SHORTEST), measured.scaled(options, LONGER)
    longest = shortest + longer * measured.count(options)
    width = measured.scaled(options, measured.WIDTH)
    network = measured.network(options, layers=2)
    x = torch.randn(longest, width, device=options.device)
    y = torch.randint(measured.KINDS, (longest,), device=options.device)
    compiled = torch.compile(network, backend=options.backend, dynamic=options.cured)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    loss = torch.zeros(())
    with torch._dynamo.config.patch(recompile_limit=VERSIONS):  # noqa: SLF001  (the setting's place)
        for step in measured.steps(options):
            rows = shortest + longer * step
            scores = compiled(x[:rows])  # fault: recompiled for each length
            loss = nn.functional.cross_entropy(scores, y[:rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
