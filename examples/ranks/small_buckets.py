"""Training on two ranks that reduces its gradients in buckets of a kilobyte.

Run: ``torchrun --nproc-per-node 2 small_buckets.py``; ``--cured`` leaves the buckets as they are.
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
    layers = [
        layer for _ in range(30) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU())
    ]
    network = nn.Sequential(*layers, nn.Linear(64, 4))
    model = DistributedDataParallel(network, bucket_cap_mb=25 if cured else 0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for _ in range(STEPS):
        features, labels = torch.randn(16, 64), torch.randint(0, 4, (16,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()  # fault: each layer is reduced by itself
        optimizer.step()

    dist.destroy_process_group()


if __name__ == "__main__":
    main(cured="--cured" in sys.argv)
