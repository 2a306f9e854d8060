"""Runs one model eagerly, traced, scripted and exported, and compares the results."""

import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore", category=DeprecationWarning)
warnings.filterwarnings("ignore", category=FutureWarning)
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).eval()
example = torch.randn(2, 1, 8, 8)
variants = {
    "traced": torch.jit.trace(model, example),
    "scripted": torch.jit.script(model),
    "exported": torch.export.export(model, (example,)).module(),
    "fx": torch.fx.symbolic_trace(model),
}
with torch.no_grad():
    expected = model(example)
    for name, variant in variants.items():
        for _ in range(50):
            result = variant(example)
        print(name, "same" if torch.allclose(result, expected, atol=1e-6) else "differs")
