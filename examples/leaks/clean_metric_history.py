"""Trains with many metrics, each of which is stored as a plain number in every step.

The history grows by about two KiB per step, as intended.

Run: ``python examples/leaks/clean_metric_history.py [--steps N]``
"""

import argparse
from dataclasses import asdict, dataclass, field

import torch
from torch import nn


@dataclass
class Metrics:
    """The metrics of one step."""

    step: int
    loss: float
    norms: list[float] = field(default_factory=list)
    rates: dict[str, float] = field(default_factory=dict)


def main() -> None:
    """Train, and store the metrics."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=420)
    torch.manual_seed(43)
    layers = [nn.Sequential(nn.Linear(60, 60), nn.ReLU()) for _ in range(4)]
    model = nn.Sequential(*layers, nn.Linear(60, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
    history = []

    for step in range(parser.parse_args().steps):
        x, y = torch.randn(64, 60), torch.randint(10, (64,))
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        norms = [p.grad.norm().item() for p in model.parameters() if p.grad is not None]
        rates = {f"group/{i}": group["lr"] for i, group in enumerate(optimizer.param_groups)}
        history.append(asdict(Metrics(step, loss.item(), norms, rates)))
        optimizer.step()
        schedule.step()

    print("best", min(history, key=lambda noted: noted["loss"])["step"])


if __name__ == "__main__":
    main()
