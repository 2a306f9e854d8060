"""Writes text with a small model, one character after the other.

The problem: the model computes all characters again for each new one.

The fix (``--cured``): it keeps the keys and values of earlier characters, and gets the new one
alone.

Run: ``python examples/host/decoded_without_cache.py [--cured]``
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

SEED, STEPS = 7, 20
CHARACTERS, WIDTH, HEADS, LAYERS = 96, 64, 4, 2
N_PROMPT, N_NEW = 40, 6


class Layer(nn.Module):
    """A layer of a decoder, with the keys and values that it has computed."""

    cache: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.to_qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.register_buffer("cache", torch.zeros(2, 1, HEADS, N_PROMPT + N_NEW, WIDTH // HEADS))

    def forward(self, x: Tensor, begin: int) -> Tensor:
        """Return the output for positions from ``begin`` on. Shape ``(1, n, width)``, as ``x``."""
        n = x.shape[1]
        qkv = self.to_qkv(self.norm(x)).view(1, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        self.cache[:, :, :, begin : begin + n] = qkv[1:]
        keys, values = self.cache[:, :, :, : begin + n]
        y = functional.scaled_dot_product_attention(qkv[0], keys, values, is_causal=n > 1)
        return x + self.out(y.transpose(1, 2).reshape(1, n, WIDTH))


class Writer(nn.Module):
    """A model that predicts the next character."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, CHARACTERS)

    def forward(self, characters: Tensor, begin: int) -> Tensor:
        """Return a score for each character to follow. Shape ``(1, n, characters)``."""
        x = self.embedding(characters)
        for layer in self.layers:
            x = layer(x, begin)
        return self.head(x)


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return what writes one text."""
    torch.manual_seed(SEED)
    writer = Writer().eval()
    prompt = torch.randint(CHARACTERS, (1, N_PROMPT))

    @torch.no_grad()
    def step() -> None:
        text, new = prompt, prompt
        for _ in range(N_NEW):
            scores = writer(new, text.shape[1] - new.shape[1])
            following = scores[:, -1].argmax(dim=-1, keepdim=True)
            text = torch.cat((text, following), dim=1)
            new = following if cured else text  # fault: the whole text is computed again

    return step


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write texts.")
    parser.add_argument("--cured", action="store_true")
    write = prepare(cured=parser.parse_args().cured)
    for _ in range(STEPS):
        write()
