"""Overhead of retaining the last steps of a program: on steps of 20 ms, and per step.

A loop of small matrix products runs with and without, in turns; what is compared is the processor
time of the process, with the thread that samples. The median of the rounds counts. The file is
created, and removed, outside of the loop; how long that takes is printed too.

Run ``python benchmarks/last_steps.py``.
"""

import statistics
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.figures import compared
from profkit.capture.live import last_steps
from profkit.capture.live.last_steps import LastStepsRecorder

STEP_S = 0.02
N_STEPS = 100
ROUNDS = 12
N_CALLS = 20_000
TARGET = 1.03
WEIGHT = torch.randn(256, 256)


def step(n_products: int, optimizer: torch.optim.Optimizer) -> None:
    """A step of so many products."""
    x = WEIGHT
    for _ in range(n_products):
        x = torch.relu(x @ WEIGHT) * 0.01
    optimizer.step()


def per_step_s(n_products: int, optimizer: torch.optim.Optimizer) -> float:
    """Processor seconds of a step."""
    began = time.process_time()
    for _ in range(N_STEPS):
        step(n_products, optimizer)
    return (time.process_time() - began) / N_STEPS


def opened(folder: str) -> LastStepsRecorder:
    """The last steps are retained from now on."""
    steps = last_steps.begin("benchmark", Path(folder) / "benchmark")
    if steps is None:
        raise SystemExit("The file could not be created.")
    return steps


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    step(500, optimizer)
    began = time.thread_time()
    step(500, optimizer)
    n_products = round(500 * STEP_S / (time.thread_time() - began))
    ratios, opens_s = [], []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(ROUNDS):
            bare_s = per_step_s(n_products, optimizer) if turn % 2 else 0.0
            began = time.thread_time()
            steps = opened(folder)
            opens_s.append(time.thread_time() - began)
            with_s = per_step_s(n_products, optimizer)
            steps.end()
            ratios.append(with_s / (bare_s or per_step_s(n_products, optimizer)))
        steps = opened(folder)
        began = time.thread_time()
        for _ in range(N_CALLS):
            steps.step()
        own_s = (time.thread_time() - began) / N_CALLS
        steps.end()
    compared("a step of 20 ms, of one without", statistics.median(ratios), "x", TARGET)
    print(f"own step()       {own_s * 1e6:6.2f} µs per step")
    print(f"begin            {statistics.median(opens_s) * 1e3:6.2f} ms")


if __name__ == "__main__":
    main()
