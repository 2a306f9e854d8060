"""Modules within modules within modules, and modules that others call as functions."""

import torch
from torch import nn


class Tree(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.here = nn.Linear(16, 16)
        self.below = nn.ModuleList(Tree(depth - 1) for _ in range(2)) if depth else []

    def forward(self, x):
        y = torch.tanh(self.here(x))
        for branch in self.below:
            y = y + branch(y) / 2
        return y


torch.manual_seed(0)
tree, helper = Tree(3), nn.Linear(16, 16)
optimizer = torch.optim.Adam([*tree.parameters(), *helper.parameters()])
print("training")
for step in range(30):
    x = torch.randn(32, 16)
    loss = (helper(tree(helper(x))) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, f"{loss.item():.4f}")
