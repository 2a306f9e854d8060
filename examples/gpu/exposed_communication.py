"""Trains a network in two processes on one device, with collectives by gloo.

NCCL, which two devices would use, refuses two processes on one.

The problem: gradients are reduced after the backward pass, one after the other. Nothing is
computed meanwhile.

The fix (``--cured``): ``DistributedDataParallel`` reduces the gradients of the last layers while
the backward pass computes those of the first. A collective is hidden only behind enough work,
and gloo is slow (2 MB took it 2 to 4 ms between two processes of one machine): so the layers are
narrow and the batch is long. One large bucket would be reduced at the end, so buckets are small.

Run: ``python examples/gpu/exposed_communication.py [--cured] [--steps N] [--device cuda]``
"""

import argparse
import contextlib
import datetime as dt
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import measured
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PROCESSES = 2
LAYERS = 8
WIDTH = 256
ROWS = 327_680
BUCKET_MB = 1
PATIENCE = dt.timedelta(minutes=1)


def own(parser: argparse.ArgumentParser) -> None:
    """Arguments that the first process passes to the second."""
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--meet", help=argparse.SUPPRESS)


@contextlib.contextmanager
def together(options: argparse.Namespace, arguments: Sequence[str]) -> Iterator[None]:
    """Start the other process, if this is the first, and connect the two.

    Args:
        arguments: The unparsed arguments, for the other process.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a machine may have no other network
    with contextlib.ExitStack() as ending:
        meet = options.meet
        if options.rank == 0:
            folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            meet = str(Path(ending.enter_context(folder)) / "meet")
            program = [sys.executable, __file__, *arguments, "--rank", "1", "--meet", meet]
            other_rank = subprocess.Popen(program, stdout=subprocess.DEVNULL)  # noqa: S603  (this file)
            ending.callback(other_rank.wait)
            ending.push(lambda error, *_: other_rank.kill() if error else None)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{meet}",
            rank=options.rank,
            world_size=PROCESSES,
            timeout=PATIENCE,
        )
        try:
            yield
        finally:
            dist.destroy_process_group()


def exchange(network: nn.Module) -> None:
    """Replace each gradient by its mean over all processes."""
    for parameter in network.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)  # fault: the backward pass is over
            parameter.grad /= PROCESSES


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss of the first process."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = measured.options(__doc__, steps=30, arguments=arguments, more=own)
    with together(options, arguments):
        network = measured.network(options, layers=LAYERS, width=WIDTH)
        torch.manual_seed(options.rank)
        x, y = measured.batch(options, rows=ROWS, width=WIDTH)
        ddp = DistributedDataParallel(network, bucket_cap_mb=BUCKET_MB) if options.cured else None
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
        loss = torch.zeros(())
        for _ in measured.steps(options):
            loss = nn.functional.cross_entropy((ddp or network)(x), y)
            optimizer.zero_grad()
            loss.backward()
            if ddp is None:
                exchange(network)
            optimizer.step()
        return measured.told("last loss", loss.detach())


if __name__ == "__main__":
    main()
