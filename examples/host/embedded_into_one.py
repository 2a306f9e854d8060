"""Computes the embeddings of a data set.

The problem: the embeddings of each batch are appended to those before by ``torch.cat``, which
copies all of them each time.

The fix (``--cured``): a list of the batches' embeddings, joined once.

Run: ``python examples/host/embedded_into_one.py [--cured]``
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn

SEED, STEPS = 7, 20
BATCHES, ROWS, INPUTS, WIDTH = 60, 64, 16, 256


def embed(network: nn.Module, batches: list[Tensor], *, cured: bool) -> Tensor:
    """Return the embeddings of all batches. Shape ``(batches * rows, width)``."""
    if cured:
        return torch.cat([network(batch) for batch in batches])

    embeddings = torch.zeros(0, WIDTH)
    for batch in batches:
        outputs = network(batch)
        embeddings = torch.cat([embeddings, outputs])  # fault: copies all that were there
    return embeddings


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return the step, which is a pass over the data set."""
    torch.manual_seed(SEED)
    network = nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.ReLU())
    batches = [torch.randn(ROWS, INPUTS) for _ in range(BATCHES)]

    def step() -> None:
        with torch.no_grad():
            embed(network, batches, cured=cured)

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Embed a data set.")
    parser.add_argument("--cured", action="store_true")
    run = prepare(cured=parser.parse_args().cured)
    for _ in range(STEPS):
        run()
