"""Trains with PyTorch-Ignite, and stores the output of every iteration with its autograd graph.

The problem: the graphs of all iterations stay in memory. The handler of profkit monitors memory
over the whole run, and names the list and the line. With ``--cured`` the outputs are numbers.

Run: ``python examples/trainers/ignite_outputs_kept.py [STEPS] [--cured]``
"""

import argparse

import torch
from ignite.engine import Engine, Events
from torch import nn
from torch.utils.data import DataLoader, Dataset

from profkit.integrations.ignite import ProfkitHandler

BATCH, WIDTH, CLASSES = 32, 64, 10


class Rows(Dataset[torch.Tensor]):
    """Random rows, whose class is their largest of the first columns.

    Args:
        n: Number of rows.
    """

    def __init__(self, n: int) -> None:
        self.rows = torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


def main() -> None:
    """Train, and print the last loss; the handler prints the report on stderr."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("steps", nargs="?", type=int, default=100)
    parser.add_argument("--cured", action="store_true")
    options = parser.parse_args()
    model = nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def update(_engine: Engine, rows: torch.Tensor) -> torch.Tensor | float:
        optimizer.zero_grad()
        classes = rows[:, :CLASSES].argmax(1)
        loss = nn.functional.cross_entropy(model(rows), classes)
        loss.backward()
        optimizer.step()
        if options.cured:
            return loss.item()
        return loss  # fault: with the graph of the step

    losses: list[torch.Tensor | float] = []
    trainer = Engine(update)
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output)
    )
    ProfkitHandler().attach(trainer)
    trainer.run(DataLoader(Rows(options.steps * BATCH), BATCH), max_epochs=1)
    print(f"{len(losses)} steps, last loss {torch.as_tensor(losses[-1]):.3f}")


if __name__ == "__main__":
    main()
