"""Trains a set encoder on sets of many sizes, and caches its masks.

The problem: the key of the cache is the sizes of all the sets of a batch. No two batches have the
same sizes, so no entry is used again, and every mask stays.

Run: ``python examples/leaks/masks_by_batch.py [--epochs N]``
"""

import argparse

import torch
from torch import Tensor, nn

_MASKS: dict[tuple[int, ...], Tensor] = {}


def mask_of(sizes: tuple[int, ...], longest: int) -> Tensor:
    """Return the valid positions of a padded batch, as weights."""
    if sizes not in _MASKS:
        filled = torch.arange(longest) < torch.tensor(sizes).unsqueeze(1)
        _MASKS[sizes] = filled.float() / filled.sum(1, keepdim=True)  # fault: allocated here
    return _MASKS[sizes]


class SetEncoder(nn.Module):
    """The mean of the encoded members of a set."""

    def __init__(self) -> None:
        super().__init__()
        self.member = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, members: Tensor, sizes: tuple[int, ...]) -> Tensor:
        """Return one vector for each set."""
        weights = mask_of(sizes, members.shape[1])
        return (self.member(members) * weights.unsqueeze(-1)).sum(1)


def train_one_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, batches: int) -> float:
    """Train for that many steps and return the mean loss."""
    total = 0.0
    for _ in range(batches):
        sizes = tuple(torch.randint(20, 120, (64,)).tolist())
        members = torch.randn(64, 120, 3)
        loss = nn.functional.mse_loss(model(members, sizes)[:, 0], members[:, 0, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / batches


def main() -> None:
    """Read the arguments and train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batches", type=int, default=20)
    options = parser.parse_args()
    torch.manual_seed(11)
    model = SetEncoder()
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(options.epochs):
        print(f"epoch {epoch}: {train_one_epoch(model, optimizer, options.batches):.4f}")


if __name__ == "__main__":
    main()
