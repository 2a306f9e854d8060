"""Learns one task after another, with one prompt per task.

The problem: each new prompt becomes a parameter group of the one optimizer, and none is ever
removed, though only the last one is still trained.

Run: ``python examples/leaks/param_groups_grow.py [--tasks N]``
"""

import argparse

import torch
from torch import Tensor, nn


class PromptedModel(nn.Module):
    """A frozen body that reads a prompt before its input."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(128, 128)
        self.head = nn.Linear(128, 2)
        self.prompt: Tensor = torch.zeros(())

    def begin_task(self) -> nn.Parameter:
        """Start with a new prompt."""
        prompt = nn.Parameter(torch.randn(300, 128) / 10)  # allocated here
        self.__dict__["prompt"] = prompt
        return prompt

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the two answers."""
        return self.head(torch.tanh(self.body(x) + self.prompt.mean(0)))


def main() -> None:
    """Learn the tasks in turn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=100)
    tasks = parser.parse_args().tasks

    torch.manual_seed(18)
    model = PromptedModel()
    model.body.requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)

    for task in range(tasks):
        optimizer.add_param_group({"params": [model.begin_task()]})  # fault: one more in each task
        x = torch.randn(64, 128)
        loss = nn.functional.cross_entropy(model(x), (x[:, task % 128] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    print(f"{tasks} tasks, {len(optimizer.param_groups)} parameter groups, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
