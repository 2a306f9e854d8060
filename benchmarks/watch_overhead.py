"""Processor time of a program whose memory is monitored, against that of the same program bare.

A small model is trained with steps of 20 ms of processor time, while 100,000 and then a million
objects beside those of torch are alive. A clean program drops what it makes; one that leaks keeps a
tensor per step, which adds inspections. Each runs in a process of its own; bare and monitored ones
alternate, so that a change of the machine's speed affects both. Printed are, for each program:

* ``ratio``: processor time of the monitored steps, with the end of monitoring, against the bare
  ones: the median of the rounds. It has what no clock of the monitor sees, such as objects that
  have left the processor's caches, and the machine's noise.
* ``own``: processor time of the monitor's own calls against that of the bare steps, which hardly
  varies.
* ``first``, ``longest``: the first look at all objects, and the longest later one.

Run it with ``python -m benchmarks.watch_overhead [--rounds N] [--steps N ...] [--json FILE]``.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.figures import compared
from profkit.capture.memory.monitor.leak_monitor import LeakMonitor

STEP_S = 0.02
SIZES = (100_000, 1_000_000)
TARGETS = {False: 0.03, True: 0.05}
WIDTH = 256


def ballast(n_objects: int) -> list[dict[str, list[int]]]:
    """Objects that the garbage collector tracks: dicts with a list each."""
    return [{"one": [place]} for place in range(n_objects // 2)]


class Training:
    """Steps of a model, each of so many passes."""

    def __init__(self, n_passes: int) -> None:
        torch.set_num_threads(1)
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.001)
        self.batch = torch.ones(128, WIDTH)
        self.n_passes = n_passes

    def step(self) -> None:
        """Train one step."""
        for _ in range(self.n_passes):
            loss = self.model(self.batch).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


def passes_per_step() -> int:
    """Passes that take the time of a step here."""
    training = Training(1)
    lengths = []
    for _ in range(40):
        began = time.process_time()
        training.step()
        lengths.append(time.process_time() - began)
    return max(1, round(STEP_S / statistics.median(lengths)))


def run_alone(n_objects: int, n_steps: int, n_passes: int, *, leaks: bool, watched: bool) -> None:
    """Run one program in this process and print its processor times as JSON."""
    kept = ballast(n_objects)
    training = Training(n_passes)
    training.step()
    tensors: list[Tensor] = []
    monitor = LeakMonitor("benchmark", "user")
    own_s = []
    began = time.process_time()

    for _ in range(n_steps):
        training.step()
        if leaks:
            tensors.append(torch.zeros(4096))
        if watched:
            ended = time.thread_time()
            monitor.step()
            own_s.append(time.thread_time() - ended)

    ended = time.thread_time()
    live = monitor.finish() if watched else None
    took = time.process_time() - began
    own_s.append(time.thread_time() - ended)
    figures: dict[str, Any] = {"took": took, "own": own_s}
    if live is not None:
        figures["n_leaks"] = len(live.leaks)
        figures["holders"] = [chain.name for leak in live.leaks for chain in leak.chains]
    print(json.dumps(figures))
    del kept


def figures_of(**program: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the figures of one program, run in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.watch_overhead", "--alone", json.dumps(program)]
    settings = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return dict(json.loads(subprocess.check_output(command, env=settings)))


def main() -> None:
    """Print one line per program."""
    parser = argparse.ArgumentParser(description="What monitoring memory costs.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, nargs="*", default=[50, 200])
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--alone", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()

    if options.alone is not None:
        run_alone(**options.alone)
        return
    n_passes = passes_per_step()
    rows = []
    print(
        f"{'objects':>9} {'steps':>6} {'program':8} {'ratio':>7} {'range':>13} {'own':>6} "
        f"{'target':>7} {'first':>8} {'longest':>8}  leaks"
    )
    for n_objects in SIZES:
        for n_steps in options.steps:
            for leaks, target in TARGETS.items():
                program = {
                    "n_objects": n_objects,
                    "n_steps": n_steps,
                    "n_passes": n_passes,
                    "leaks": leaks,
                }
                pairs = [
                    [figures_of(**program, watched=watched) for watched in (False, True)]
                    for _ in range(options.rounds)
                ]
                ratios = [watched["took"] / bare["took"] for bare, watched in pairs]
                bare_s = statistics.median(bare["took"] for bare, _ in pairs)
                own_share = statistics.median(sum(watched["own"]) for _, watched in pairs) / bare_s
                last = pairs[-1][1]
                row = {
                    **program,
                    "ratio": statistics.median(ratios),
                    "own": own_share,
                    "target": target,
                    "first_ms": last["own"][0] * 1e3,
                    "longest_ms": max(last["own"][1:]) * 1e3,
                }
                rows.append(row)
                print(
                    f"{n_objects:9,} {n_steps:6} {'leaking' if leaks else 'clean':8} "
                    f"{row['ratio']:7.3f} {min(ratios):6.3f}-{max(ratios):6.3f} {own_share:6.1%} "
                    f"{1 + target:7.2f} {row['first_ms']:5.1f} ms {row['longest_ms']:5.1f} ms  "
                    f"{last['n_leaks']} {last['holders']}",
                    flush=True,
                )
    for row in rows:
        kind = "leaking" if row["leaks"] else "clean"
        what = f"monitoring {row['n_steps']} {kind} steps, {row['n_objects']:,} objects"
        compared(what, 1 + row["own"], "x bare", 1 + row["target"])

    if options.json is not None:
        options.json.write_text(json.dumps(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
