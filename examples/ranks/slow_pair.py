"""Three ranks that exchange tensors in pairs, of which one has a slow connection.

The kernel limits what ranks 0 and 1 send to each other (Linux's ``SO_MAX_PACING_RATE``), as a
network adapter that negotiated a lower speed would.

Run: ``torchrun --nproc-per-node 3 slow_pair.py``; ``--cured`` limits nothing.
"""

import itertools
import os
import socket
import sys
from pathlib import Path

import torch
import torch.distributed as dist

STEPS = 40
NUMBERS = 1 << 20
MAX_PACING_RATE = 47
BYTES_PER_S = 60_000_000
SLOW = (0, 1)


def find_connections() -> set[int]:
    """Find the descriptors of this process's connections."""
    connections = set()
    for path in Path("/proc/self/fd").iterdir():
        if path.is_symlink() and str(path.readlink()).startswith("socket:"):
            connections.add(int(path.name))
    return connections


def limit(descriptors: set[int]) -> None:
    """Limit how fast each connection sends."""
    for descriptor in descriptors:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, MAX_PACING_RATE, BYTES_PER_S)


def main(*, cured: bool) -> None:
    """Sum tensors of two ranks in turn, for some steps."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    numbers = torch.ones(NUMBERS)
    groups = {}
    for pair in itertools.combinations(range(3), 2):
        before = find_connections()
        groups[pair] = dist.new_group(list(pair))
        if rank in pair:
            dist.all_reduce(numbers, group=groups[pair])
        if pair == SLOW and rank in SLOW and not cured:
            limit(find_connections() - before)  # fault: this pair is slow

    weight = torch.nn.Parameter(torch.zeros(NUMBERS))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(STEPS):
        weight.grad = torch.ones(NUMBERS)
        for pair, group in groups.items():
            if rank in pair:
                dist.all_reduce(weight.grad, group=group)
        optimizer.step()

    dist.destroy_process_group()


if __name__ == "__main__":
    main(cured="--cured" in sys.argv)
