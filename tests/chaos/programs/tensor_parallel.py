"""A rank of a job that splits each block's matrices over its ranks, as tensor parallelism does."""

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


class Block(nn.Module):
    """A feed-forward block with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output. Shape ``(n, width)`` in and out."""
        return x + self.down(torch.relu(self.up(x)))


mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
model = nn.Sequential(*(Block(128) for _ in range(4)))
for block in model:
    parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(30):
    x = torch.randn(64, 128)
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if distributed.get_rank() == 0 and step % 6 == 0:
        print(step, f"{loss.item():.3f}")
distributed.destroy_process_group()
