"""Trains a small network on the iris flowers and stores the loss of every 200th epoch.

The fixed version of ``iris_item_each_epoch.py`` for those who want the curve: a hundred points draw
it as well as twenty thousand, and the host waits for the device a hundred times only.

Run: ``python examples/iris_item_every_200.py [EPOCHS]``
"""

import argparse
import importlib.util

import torch
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split
from torch import nn

SEED = 7
HELD_OUT = 30
KEEP_EVERY = 200


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


def train(epochs: int, print_every: int, device: torch.device) -> dict[int, float]:
    """Train on the full batch and return the losses of some epochs."""
    flowers, kinds = training_set(device)
    network = Classifier().to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    measure = nn.CrossEntropyLoss()
    losses = {}
    for epoch in range(1, epochs + 1):
        loss = measure(network(flowers), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % KEEP_EVERY == 0:
            losses[epoch] = loss.item()
        if epoch % print_every == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")
    return losses


def draw(losses: dict[int, float], path: str) -> None:
    """Save the loss curve as an image, if matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    from matplotlib.figure import Figure  # noqa: PLC0415  (an extra)

    figure = Figure()
    axes = figure.add_subplot(xlabel="epoch", ylabel="loss")
    axes.plot(list(losses), list(losses.values()))
    figure.savefig(path)
    print(f"loss curve: {path}")


def main() -> None:
    """Read the arguments, train, draw."""
    parser = argparse.ArgumentParser(description="Train on iris, keeping one loss in 200.")
    parser.add_argument("epochs", nargs="?", type=int, default=20_000)
    parser.add_argument("--print-every", type=int, default=100, metavar="EPOCHS")
    parser.add_argument("--curve", default="iris_item_every_200.png", metavar="PICTURE")
    options = parser.parse_args()
    torch.manual_seed(SEED)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    losses = train(options.epochs, options.print_every, device)
    draw(losses, options.curve)


if __name__ == "__main__":
    main()
