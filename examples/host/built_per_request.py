"""Answers requests with a network of two layers.

The problem: each request builds the network and loads its weights.

The fix (``--cured``): it is built and loaded once, before the first request.

Run: ``python examples/host/built_per_request.py [--cured]``
"""

import argparse
import io
from collections.abc import Callable

import torch
from torch import nn

SEED, REQUESTS = 7, 20
WIDTH, HIDDEN, ROWS = 256, 1_024, 4


def prepare(*, cured: bool) -> Callable[[], None]:
    """Return what answers a request."""
    torch.manual_seed(SEED)
    file = io.BytesIO()
    torch.save(_build().state_dict(), file)

    def load() -> nn.Module:
        file.seek(0)
        model = _build()
        model.load_state_dict(torch.load(file))
        return model.eval()

    loaded = load()

    def answer() -> None:
        model = loaded if cured else load()  # fault: builds and loads what is there already
        with torch.inference_mode():
            model(torch.rand(ROWS, WIDTH)).argmax(1)

    return answer


def _build() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, WIDTH))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Answer requests.")
    parser.add_argument("--cured", action="store_true")
    respond = prepare(cured=parser.parse_args().cured)
    for _ in range(REQUESTS):
        respond()
