"""Trains for several epochs on samples that the data set caches on first access.

No leak: after the first epoch every sample is in the cache. ``crops_cached.py`` creates new ones in
every epoch.

Run: ``python examples/leaks/clean_samples_cached.py [--epochs N]``
"""

import argparse

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset[tuple[Tensor, Tensor]]):
    """Signals that take long to compute."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.cache: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index not in self.cache:
            t = torch.linspace(0, 1, 8000)
            self.cache[index] = torch.sin(t * (100 + index)) * torch.exp(-t)
        return self.cache[index], torch.tensor(float(index % 7))


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    epochs = parser.parse_args().epochs

    torch.manual_seed(53)
    loader = DataLoader(Waves(320), batch_size=8, shuffle=True)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8000)),
        nn.Conv1d(1, 8, 64, stride=32),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(4),
        nn.Flatten(),
        nn.Linear(32, 1),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for epoch in range(epochs):
        total = 0.0
        for waves, pitch in loader:
            loss = nn.functional.mse_loss(model(waves).squeeze(1), pitch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: {total / len(loader):.3f}")


if __name__ == "__main__":
    main()
