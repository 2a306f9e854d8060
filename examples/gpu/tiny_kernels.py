"""Trains a network of many small layers on small batches.

The problem: each kernel takes a few microseconds, less than the host needs to launch the next one,
and the device is idle most of the time.

The fix (``--cured``): the forward and backward passes are captured once in a CUDA graph, and each
step launches the graph. On a CPU, which has no graphs, nothing changes.

Run: ``python examples/gpu/tiny_kernels.py [--cured] [--steps N] [--device cuda]``
"""

from collections.abc import Callable, Sequence

import measured
import torch
from torch import Tensor, nn

LAYERS = 40
WIDTH = 64
ROWS = 64


def capture(both_passes: Callable[[], Tensor], network: nn.Module) -> Callable[[], Tensor]:
    """Both passes as one launch.

    A graph replays what was launched during its capture, with the same addresses. One-time work
    of the first call (library handles, workspaces) has to be done before, on another stream; and
    the gradients have to be created inside, so that each replay writes them again.

    Args:
        both_passes: Computes the loss and the gradients.
    """
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            network.zero_grad(set_to_none=True)
            both_passes()
    torch.cuda.current_stream().wait_stream(aside)
    network.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = both_passes()

    def replayed() -> Tensor:
        graph.replay()
        return loss

    return replayed


def main(arguments: Sequence[str] | None = None) -> float:
    """Train and return the last loss."""
    options = measured.options(__doc__, steps=500, arguments=arguments)
    network = measured.network(options, layers=LAYERS, width=WIDTH)
    x, y = measured.batch(options, rows=ROWS, width=WIDTH)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    def both_passes() -> Tensor:
        loss = nn.functional.cross_entropy(network(x), y)  # fault: kernel by kernel
        loss.backward()
        return loss.detach()

    def launched() -> Tensor:
        network.zero_grad(set_to_none=True)
        return both_passes()

    by_graph = options.cured and measured.on_cuda(options)
    passes = capture(both_passes, network) if by_graph else launched
    loss = torch.zeros(())
    for _ in measured.steps(options):
        loss = passes()
        optimizer.step()
    return measured.told("last loss", loss)


if __name__ == "__main__":
    main()
