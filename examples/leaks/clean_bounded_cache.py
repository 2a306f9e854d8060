"""Trains on sentences of random words, with the spelling of each word in a cache.

No leak: the cache has room for 64 words, and is full soon.

Run: ``python examples/leaks/clean_bounded_cache.py [--steps N]``
"""

import argparse
import functools

import torch
from torch import Tensor, nn


@functools.lru_cache(maxsize=64)
def spelling(word: int) -> Tensor:
    """Return the letters of a word as a tensor."""
    letters = torch.Generator().manual_seed(word)
    return torch.randn(40, 60, generator=letters)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=180)
    steps = parser.parse_args().steps
    torch.manual_seed(44)
    model = nn.Sequential(nn.Flatten(), nn.Linear(2400, 20), nn.ReLU(), nn.Linear(20, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        words = torch.randint(5000, (12,))
        loss = (model(torch.stack([spelling(int(word)) for word in words])) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(spelling.cache_info())


if __name__ == "__main__":
    main()
