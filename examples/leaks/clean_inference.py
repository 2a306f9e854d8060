"""Predicts for a whole data set without gradients, into a preallocated tensor.

No leak: each batch is freed after its prediction.

Run: ``python examples/leaks/clean_inference.py [BATCHES]``
"""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


@torch.no_grad()
def predict(model: nn.Module, loader: DataLoader, out: Tensor) -> Tensor:
    """Compute the predictions."""
    begin = 0
    for (pictures,) in loader:
        scores = model(pictures)
        out[begin : begin + len(scores)] = scores.softmax(1)
        begin += len(scores)
    return out


def main(batches: int) -> None:
    """Predict."""
    torch.manual_seed(57)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(16 * 49, 100)
    ).eval()
    pictures = torch.rand(64, 3, 32, 32).repeat(batches // 8 + 1, 1, 1, 1)[: batches * 8]
    loader = DataLoader(TensorDataset(pictures), batch_size=8)
    predicted = predict(model, loader, torch.empty(batches * 8, 100))
    print(f"{len(predicted)} predictions, mean confidence {predicted.max(1).values.mean():.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
