"""Trains a layer of attention that is written by hand.

The problem: the scores of all heads are written to memory, scaled, and read again by the softmax
and by the second product.

The fix (``--cured``): ``scaled_dot_product_attention``, which keeps a block of scores in the cache.

Run: ``python examples/truth/programs/attention_by_hand.py [--cured]``
"""

import argparse
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

SEED, STEPS = 7, 40
WIDTH, HEAD, BATCH, LENGTH = 128, 32, 4, 256


def attend_by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the attention of each head, by two products and a softmax."""
    return (q @ k.transpose(-2, -1) / math.sqrt(HEAD)).softmax(-1) @ v  # fault: writes all scores


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return the step of training."""
    torch.manual_seed(SEED)
    inwards, outwards = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
    attend = nn.functional.scaled_dot_product_attention if cured else attend_by_hand
    optimizer = torch.optim.SGD([*inwards.parameters(), *outwards.parameters()], lr=0.01)
    x, y = torch.randn(BATCH, LENGTH, WIDTH), torch.randn(BATCH, LENGTH, WIDTH)

    def step() -> None:
        q, k, v = inwards(x).unflatten(-1, (3, -1, HEAD)).transpose(1, 3).unbind(2)
        attended = attend(q, k, v).transpose(1, 2).flatten(2)
        optimizer.zero_grad()
        nn.functional.mse_loss(outwards(attended), y).backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a layer of attention.")
    parser.add_argument("--cured", action="store_true")
    train = prepare(cured=parser.parse_args().cured)
    for _ in range(STEPS):
        train()
