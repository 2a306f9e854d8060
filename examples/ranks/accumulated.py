"""Training on two ranks that accumulates gradients, and reduces them after each part of a batch.

Run: ``torchrun --nproc-per-node 2 accumulated.py``; ``--cured`` reduces after the last part alone.
"""

import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 30
PARTS = 4


def main(*, cured: bool) -> None:
    """Train for some steps of four parts each."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 4)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for _ in range(STEPS):
        optimizer.zero_grad()
        for part in range(PARTS):
            features, labels = torch.randn(8, 256), torch.randint(0, 4, (8,))
            is_last = part + 1 == PARTS
            with model.no_sync() if cured and not is_last else nullcontext():
                scores = model(features)  # fault: three of four passes reduce in vain
                (nn.functional.cross_entropy(scores, labels) / PARTS).backward()
        optimizer.step()

    dist.destroy_process_group()


if __name__ == "__main__":
    main(cured="--cured" in sys.argv)
