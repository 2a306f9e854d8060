"""Trains a small classifier: what the tests beside it limit the cost of."""

import torch
from torch.nn.functional import cross_entropy

losses: list[torch.Tensor] = []


def batches(n: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Random samples of four features, with one of three classes each."""
    torch.manual_seed(0)
    return [(torch.randn(32, 4), torch.randint(3, (32,))) for _ in range(n)]


def classifier() -> torch.nn.Module:
    """Return a network for these samples."""
    return torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))


def train_step(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Do one training step, and return the loss, detached."""
    samples, labels = batch
    optimizer.zero_grad()
    loss = cross_entropy(model(samples), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()
