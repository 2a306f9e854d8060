"""Training on two ranks whose model searches for unused parameters, of which it has none.

Run: ``torchrun --nproc-per-node 2 searched_parameters.py``; ``--cured`` does not search.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 40


def main(*, cured: bool) -> None:
    """Train a deep network for some steps."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [layer for _ in range(30) for layer in (nn.Linear(32, 32), nn.ReLU())]
    network = nn.Sequential(*layers, nn.Linear(32, 4))
    model = DistributedDataParallel(network, find_unused_parameters=not cured)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for _ in range(STEPS):
        features, labels = torch.randn(16, 32), torch.randint(0, 4, (16,))
        optimizer.zero_grad()
        scores = model(features)  # fault: it looks for parameters without a gradient
        nn.functional.cross_entropy(scores, labels).backward()
        optimizer.step()

    dist.destroy_process_group()


if __name__ == "__main__":
    main(cured="--cured" in sys.argv)
