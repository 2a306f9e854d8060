"""Scores graphs of different shape, and caches what depends on the shape alone.

The problem: the keys of ``functools.cache`` on a method are the edges themselves, which are new
tensors in each batch; no entry is used again, and the cache retains the results.

Run: ``python examples/leaks/cached_method.py [--steps N] [--nodes N]``
"""

import argparse
import functools

import torch
from torch import Tensor, nn


class GraphNet(nn.Module):
    """Two rounds of messages."""

    def __init__(self, nodes: int, width: int = 16) -> None:
        super().__init__()
        self.nodes = nodes
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, 1)

    @functools.cache  # noqa: B019  # fault: edges are equal only to themselves
    def adjacency(self, edges: Tensor) -> Tensor:
        """Return the adjacency matrix, with rows that sum to one."""
        dense = torch.zeros(self.nodes, self.nodes)  # allocated here
        dense[edges[0], edges[1]] = 1.0
        dense.fill_diagonal_(1.0)
        return dense / dense.sum(-1, keepdim=True)  # allocated here

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Return one number for the graph."""
        mix = self.adjacency(edges)
        return self.second(mix @ torch.relu(self.first(mix @ x))).mean()


def main() -> None:
    """Train on graphs that never repeat."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=130)
    parser.add_argument("--nodes", type=int, default=150)
    args = parser.parse_args()
    torch.manual_seed(37)
    net = GraphNet(args.nodes)
    adagrad = torch.optim.Adagrad(net.parameters(), lr=0.01)
    for _ in range(args.steps):
        edges = torch.randint(args.nodes, (2, 4 * args.nodes))
        loss = (net(torch.randn(args.nodes, 16), edges) - 1).square()
        adagrad.zero_grad()
        loss.backward()
        adagrad.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
