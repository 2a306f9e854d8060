"""Trains with a moving average of the weights, as most image models do.

No leak: the average is one more copy of the network, and Adam's moments are two.

Run: ``python examples/leaks/clean_moving_average.py [STEPS]``
"""

import sys

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def main(steps: int) -> None:
    """Train."""
    torch.manual_seed(50)
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 12, 3, stride=2),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 10),
    )
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99), use_buffers=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    rates = []

    for _ in range(steps):
        pictures, kinds = torch.rand(8, 3, 32, 32), torch.randint(10, (8,))
        loss = nn.functional.cross_entropy(model(pictures), kinds, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        average.update_parameters(model)
        rates.append(optimizer.param_groups[0]["lr"])

    print(f"{len(rates)} steps, the average was updated {average.n_averaged.item()} times")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 150)
