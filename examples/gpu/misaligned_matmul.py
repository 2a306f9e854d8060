"""Trains a network with as many scores as GPT-2 has tokens.

The problem: 50,257 is no multiple of 4 elements. Rows of the scores and of their gradients do not
begin at multiples of 16 bytes, and the products that read or write them get slower kernels.

The fix (``--cured``): 50,304 scores. Those that stand for nothing have a weight of zero and a bias
so low that they do not change the loss.

Run: ``python examples/gpu/misaligned_matmul.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Sequence

import measured
import torch
from torch import nn

WIDTH = 2048
ROWS = 2048
TOKENS = 50257
NEVER = -1e4


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=60, arguments=arguments)
    n_tokens = measured.scaled(options, TOKENS) + 1
    network = measured.network(options, layers=4, width=WIDTH)[:-1]
    x, y = measured.batch(options, rows=ROWS, width=WIDTH, kinds=n_tokens)
    head = nn.Linear(x.shape[1], n_tokens).to(options.device)
    padding = -n_tokens % 64 if options.cured else 0
    weight = nn.functional.pad(head.weight.detach(), (0, 0, 0, padding)).requires_grad_()
    bias = nn.functional.pad(head.bias.detach(), (0, padding), value=NEVER).requires_grad_()
    optimizer = torch.optim.SGD([*network.parameters(), weight, bias], lr=0.01)
    loss = torch.zeros(())
    for _ in measured.steps(options):
        scores = nn.functional.linear(network(x), weight, bias)  # fault: 50,257 scores
        loss = nn.functional.cross_entropy(scores, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
