"""Trains a small network on the iris flowers and stores no losses: the fastest version.

The fixed version of ``iris_item_each_epoch.py``: no value is read from the device in the loop,
except for a line that is printed now and then. The host enqueues epoch after epoch without waiting.

Run: ``python examples/iris_no_losses.py [EPOCHS]``
"""

import argparse

import torch
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split
from torch import nn

SEED = 7
HELD_OUT = 30


class Classifier(nn.Module):
    """Four measurements of a flower, ten hidden units, three species of iris."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 10)
        self.output = nn.Linear(10, 3)

    def forward(self, flowers: torch.Tensor) -> torch.Tensor:
        """Scores of the classes. Shapes ``(n, 4)`` to ``(n, 3)``."""
        scores: torch.Tensor = self.output(torch.relu(self.hidden(flowers)))
        return scores


def training_set(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The 120 training samples and their classes, on the device."""
    measures, kinds = load_iris(return_X_y=True)
    measures, _, kinds, _ = train_test_split(
        measures, kinds, test_size=HELD_OUT, random_state=SEED, stratify=kinds
    )
    flowers = torch.tensor(measures, dtype=torch.float32, device=device)
    return flowers, torch.tensor(kinds, dtype=torch.long, device=device)


def train(epochs: int, print_every: int, device: torch.device) -> None:
    """Train on the full batch."""
    flowers, kinds = training_set(device)
    network = Classifier().to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    measure = nn.CrossEntropyLoss()
    for epoch in range(1, epochs + 1):
        loss = measure(network(flowers), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % print_every == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")


def main() -> None:
    """Read the arguments and train."""
    parser = argparse.ArgumentParser(description="Train on iris, keeping no losses.")
    parser.add_argument("epochs", nargs="?", type=int, default=20_000)
    parser.add_argument("--print-every", type=int, default=100, metavar="EPOCHS")
    options = parser.parse_args()
    torch.manual_seed(SEED)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train(options.epochs, options.print_every, device)


if __name__ == "__main__":
    main()
