"""Trains with PyTorch-Ignite, and stores the output of every iteration with its autograd graph.

The problem: the graphs of all iterations stay in memory. The handler of profkit monitors memory
over the whole run, and names the list and the line. With ``--cured`` the outputs are detached.

Run: ``python examples/trainers/ignite_outputs_kept.py [STEPS] [--cured]``
"""

import argparse

import torch
from ignite.engine import Engine, Events
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from profkit.integrations.ignite import ProfkitHandler

BATCH, WIDTH, HIDDEN, CLASSES = 64, 256, 4096, 10


def main() -> None:
    """Train, and print the last loss; the handler prints the report on stderr."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("steps", nargs="?", type=int, default=100)
    parser.add_argument("--cured", action="store_true")
    options = parser.parse_args()
    model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def update(_engine: Engine, batch: tuple[torch.Tensor]) -> torch.Tensor:
        (rows,) = batch
        optimizer.zero_grad()
        classes = rows[:, :CLASSES].argmax(1)
        loss = nn.functional.cross_entropy(model(rows), classes)
        loss.backward()
        optimizer.step()
        if options.cured:
            return loss.detach()
        return loss  # fault: with the graph of the step

    losses: list[torch.Tensor] = []
    trainer = Engine(update)
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output)
    )
    ProfkitHandler().attach(trainer)
    batches = TensorDataset(torch.randn(options.steps, BATCH, WIDTH))
    trainer.run(DataLoader(batches, batch_size=None), max_epochs=1)
    print(f"{len(losses)} steps, last loss {losses[-1].detach():.3f}")


if __name__ == "__main__":
    main()
