"""Trains a small language model as most people would, in mixed precision with a DataLoader.

It has no planted problem. ``--compile`` compiles the model, ``--graphs`` replays its forward and
backward passes as CUDA graphs; both are what the guides of PyTorch recommend.

Run: ``python examples/gpu/ordinary/transformer.py [--compile [MODE]] [--graphs] [--steps N]``
"""

import argparse
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

VOCABULARY = 256
LENGTH = 256


class Text(Dataset[tuple[Tensor, Tensor]]):
    """Pieces of a random text, each with the same piece moved on by one character."""

    def __init__(self, n_pieces: int) -> None:
        self.text = torch.randint(VOCABULARY, (n_pieces + LENGTH + 1,))
        self.n_pieces = n_pieces

    def __len__(self) -> int:
        return self.n_pieces

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        piece = self.text[index : index + LENGTH + 1]
        return piece[:-1], piece[1:]


class LanguageModel(nn.Module):
    """A transformer with causal attention over characters."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.zeros(LENGTH, width))
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, dropout=0.1, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.scores = nn.Linear(width, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, text: Tensor) -> Tensor:
        """Return the scores of the next characters, ``(batch, length, vocabulary)``."""
        x = self.characters(text) + self.positions
        return self.scores(self.layers(x, mask=self.mask, is_causal=True))


def main() -> None:
    """Train, and print the time of a step without the first ones."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--compile", nargs="?", const="default", metavar="MODE")
    parser.add_argument("--graphs", action="store_true", help="replay passes as CUDA graphs")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    is_on_gpu = device.type == "cuda"

    torch.manual_seed(0)
    dataset = Text(options.steps * options.batch)
    loader = DataLoader(
        dataset, options.batch, shuffle=True, num_workers=2, pin_memory=is_on_gpu, drop_last=True
    )
    model: Any = LanguageModel(options.width, options.layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scaler = torch.amp.GradScaler(device.type, enabled=is_on_gpu)
    precision = torch.float16 if is_on_gpu else torch.bfloat16
    if options.compile:
        model = torch.compile(model, mode=options.compile)
    if options.graphs:
        sample = torch.zeros(options.batch, LENGTH, dtype=torch.long, device=device)
        with torch.autocast(device.type, precision, cache_enabled=False):
            model = torch.cuda.make_graphed_callables(model, (sample,))

    n_first, began, loss = options.steps // 2, 0.0, torch.zeros(())
    for step, batch in enumerate(loader):
        if step == n_first:
            if is_on_gpu:
                torch.cuda.synchronize()
            began = time.perf_counter()
        text, following = (part.to(device, non_blocking=True) for part in batch)
        optimizer.zero_grad()
        with torch.autocast(device.type, precision, cache_enabled=not options.graphs):
            scores = model(text)
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), following.flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    if is_on_gpu:
        torch.cuda.synchronize()
    n_timed = options.steps - n_first
    print(f"{(time.perf_counter() - began) / n_timed * 1000:.4f} ms per step over {n_timed} steps")


if __name__ == "__main__":
    main()
