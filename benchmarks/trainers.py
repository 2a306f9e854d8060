"""Overhead of the callbacks for trainers: ``profkit.trace`` and a callback on the same loop.

A small network is trained by Lightning, by the Trainer of Transformers, by PyTorch-Ignite and by a
loop with Accelerate, each without profkit, with profkit's callback (without and with monitored
memory), and with ``profkit.trace`` whose ``step()`` a bare callback calls at the same places. What
is compared is the processor time of training, with the recording of three steps and without the
report. The ways alternate; the median of the rounds counts.

Run ``python benchmarks/trainers.py [--rounds N] [--steps N] [--json FILE]``.
"""

import argparse
import json
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

import profkit
from benchmarks.figures import compared
from profkit.capture.recording import current
from profkit.integrations.training import Training

TARGET = 1.0
NOISE = 0.05
WIDTH, BATCH = 256, 64
Run = Callable[[int, Any], None]


class Traced(Training):
    """What a callback is compared with: it only calls ``profkit.trace``."""

    def begin(self) -> None:
        """Enter the block."""
        self.block: Any = profkit.trace("train", wait=2, warmup=2, active=3, quiet=True)
        self.block.__enter__()

    def step(self) -> None:
        """End a step."""
        self.block.step()

    def end(self, *_given: object, **_named: object) -> None:
        """Leave the block, once."""
        block, self.block = self.block, None
        if block is not None:
            block.__exit__(None, None, None)


class Unreported(Training):
    """The training of a callback without the report, which is not part of the training."""

    def end(self, *_given: object, **_named: object) -> None:
        """Write the files."""
        self.drop()


class Nothing(Training):
    """A callback that does nothing."""

    def begin(self) -> None:
        """Do nothing."""

    def step(self) -> None:
        """Do nothing."""

    def end(self, *_given: object, **_named: object) -> None:
        """Do nothing."""


def trainings() -> dict[str, Training]:
    """Return the compared trainings, by name."""
    return {
        "bare": Nothing("train", {}, leaks=False, quiet=True),
        "trace": Traced("train", {}, leaks=False, quiet=True),
        "callback": Unreported("train", {"limit": 1 << 30}, leaks=False, quiet=True),
        "callback with memory": Unreported("train", {"limit": 1 << 30}, leaks=True, quiet=True),
    }


def network() -> torch.nn.Module:
    """Return a step of some milliseconds."""
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()) for _ in range(6)]
    return torch.nn.Sequential(*layers)


def loader(n_steps: int) -> Any:  # noqa: ANN401  (of tensors)
    """Batches."""
    rows: Any = torch.randn(n_steps * BATCH, WIDTH)
    return DataLoader(rows, BATCH)


def run_lightning(n_steps: int, training: Training) -> None:
    """Fit."""
    import lightning.pytorch as pl

    from profkit.integrations.lightning import ProfkitCallback

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def training_step(self, batch: torch.Tensor, _number: int) -> torch.Tensor:
            loss: torch.Tensor = self.network(batch).square().mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    callback = ProfkitCallback()
    callback.training = training
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback],
    )
    trainer.fit(Module(), loader(n_steps))


def run_huggingface(n_steps: int, training: Training) -> None:
    """Train."""
    from transformers import PrinterCallback, Trainer, TrainingArguments

    from profkit.integrations.huggingface import ProfkitTrainerCallback

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def forward(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.network(rows).square().mean()}

    callback = ProfkitTrainerCallback()
    callback.training = training
    arguments = TrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=BATCH,
        num_train_epochs=1,
        report_to=[],
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    rows: Any = [{"rows": row} for row in torch.randn(n_steps * BATCH, WIDTH)]
    trainer = Trainer(Model(), arguments, train_dataset=rows, callbacks=[callback])
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def run_ignite(n_steps: int, training: Training) -> None:
    """Run an engine."""
    from ignite.engine import Engine

    from profkit.integrations.ignite import ProfkitHandler

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def update(_engine: object, batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    engine, handler = Engine(update), ProfkitHandler()
    handler.training = training
    handler.attach(engine)
    engine.run(loader(n_steps))


def run_accelerate(n_steps: int, training: Training) -> None:
    """Run a loop of Accelerate."""
    from accelerate import Accelerator

    from profkit.integrations.accelerate import ProfkitProfile

    accelerator = Accelerator(cpu=True)
    plain = network()
    optimizer: Any = torch.optim.SGD(plain.parameters(), lr=0.01)
    model, optimizer, batches = accelerator.prepare(plain, optimizer, loader(n_steps))
    profile = ProfkitProfile(accelerator)
    profile.training = training
    with profile:
        for batch in batches:
            optimizer.zero_grad()
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
            profile.step()


def measured(run: Run, n_steps: int, n_rounds: int) -> dict[str, float]:
    """Median processor time of each way, in seconds; the first round is not counted."""
    took: dict[str, list[float]] = {}
    for _ in range(n_rounds + 1):
        for name, training in trainings().items():
            current.reset_limits()
            began_s = time.process_time()
            run(n_steps, training)
            took.setdefault(name, []).append(time.process_time() - began_s)
    return {name: statistics.median(seconds[1:]) for name, seconds in took.items()}


def main() -> None:
    """Print the processor time of each way, and its ratio to ``profkit.trace``."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    results = {}

    with tempfile.TemporaryDirectory() as folder:
        os.environ["PROFKIT_DIR"] = folder
        for run in (run_lightning, run_huggingface, run_ignite, run_accelerate):
            took = measured(run, options.steps, options.rounds)
            ratio = took["callback"] / took["trace"]
            results[run.__name__] = took | {"ratio": ratio}
            times = ", ".join(f"{name} {s:.2f} s" for name, s in took.items())
            print(f"{run.__name__}: {times}")
            compared(f"{run.__name__}: callback, of profkit.trace", ratio, "x", TARGET + NOISE)

    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
