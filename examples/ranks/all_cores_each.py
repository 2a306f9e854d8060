"""Training on two ranks of one machine, each of which takes all cores.

Run: ``torchrun --nproc-per-node 2 all_cores_each.py``; ``--cured`` gives each rank its share.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 40


def main(*, cured: bool) -> None:
    """Train a wide network for some steps."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    n_cores = len(os.sched_getaffinity(0))
    ranks = dist.get_world_size()
    torch.set_num_threads(max(1, n_cores // ranks if cured else n_cores))  # fault: of each rank
    network = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU())
    model = DistributedDataParallel(nn.Sequential(network, nn.Linear(512, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for _ in range(STEPS):
        features, labels = torch.randn(256, 512), torch.randint(0, 4, (256,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()

    dist.destroy_process_group()


if __name__ == "__main__":
    main(cured="--cured" in sys.argv)
