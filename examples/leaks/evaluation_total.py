"""Evaluates a trained network on held-out data, batch by batch.

The problem: gradients are on, and the losses are summed as tensors. The sum retains the graph of
every batch, with the activations for a backward pass.

Run: ``python examples/leaks/evaluation_total.py [--batches N] [--batch-size N]``
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Digits(nn.Module):
    """A small convolutional classifier of 28 x 28 images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.head = nn.Linear(16 * 7 * 7, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the ten classes."""
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)  # allocated here
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)  # allocated here
        return self.head(x.flatten(1))


def evaluate(model: nn.Module, loader: DataLoader, device: str) -> tuple[float, float]:
    """Mean loss and accuracy over a loader."""
    model.eval()
    criterion = nn.CrossEntropyLoss()
    test_loss, correct, seen = 0, 0, 0
    for data, target in loader:
        pictures, classes = data.to(device), target.to(device)
        output = model(pictures)
        test_loss += criterion(output, classes)  # fault: allocated here, retains its graph
        correct += (output.argmax(1) == classes).sum().item()
        seen += len(classes)
    return float(test_loss) / len(loader), correct / seen


def main() -> None:
    """Read the arguments and evaluate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=16)
    options = parser.parse_args()
    torch.manual_seed(2)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    n = options.batches * options.batch_size
    held_out = TensorDataset(torch.rand(n, 1, 28, 28), torch.randint(10, (n,)))
    loader = DataLoader(held_out, batch_size=options.batch_size)
    loss, accuracy = evaluate(Digits().to(device), loader, device)
    print(f"test loss {loss:.4f}, accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
