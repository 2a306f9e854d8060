"""What recording costs a step: ``profkit.trace`` against bare ``torch.profiler``, in one run.

A small transformer takes steps without a profiler, under ``torch.profiler`` with the
options that ``profkit.trace`` uses for its times, under ``profkit.trace`` itself, and under
``torch.profiler`` with Python stacks. The four take turns, so that a machine that slows down slows
all of them. Then the time from the end of a block to its file, against
``export_chrome_trace("….json.gz")`` of the same recording.

Run it with ``python benchmarks/capture_overhead.py [--device cuda] [--json FILE]``. On a GPU a step
is timed from a device that is idle to one that is idle again.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import profkit

ROUNDS = 9
STEPS = 12
AIM = 1.05

Step = Callable[[], None]


def transformer_step(device: str) -> Step:
    """A training step of a small transformer, and the wait for what it sent to the device.

    Args:
        device: Where it trains.
    """
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    model = torch.nn.Sequential(torch.nn.TransformerEncoder(layer, 3), torch.nn.Linear(64, 8))
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(4, 16, 64, device=device)
    target = torch.randn(4, 16, 8, device=device)
    wait = torch.cuda.synchronize if device.startswith("cuda") else nothing

    def step() -> None:
        loss = torch.nn.functional.mse_loss(model(batch), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wait()

    return step


def timed(step: Step, ended: Step) -> list[float]:
    """Lengths of steps in seconds; ``ended`` is called after each and is not counted."""
    lengths = []
    for _ in range(STEPS):
        began = time.perf_counter()
        step()
        lengths.append(time.perf_counter() - began)
        ended()
    return lengths


def nothing() -> None:
    """Without a profiler."""


def under_torch(step: Step, *, stacks: bool) -> list[float]:
    """Lengths under torch's own profiler."""
    recording = torch.profiler.profile(record_shapes=True, profile_memory=True, with_stack=stacks)
    recording.start()
    with torch.profiler.record_function("ProfilerStep#0"):
        lengths = timed(step, nothing)
    recording.stop()
    return lengths


def under_profkit(step: Step, folder: str) -> list[float]:
    """Lengths in the window from which profkit takes its times."""
    with profkit.trace(
        "step", wait=0, warmup=2, active=STEPS, limit=1 << 30, dir=folder, quiet=True
    ) as trace:
        for _ in range(2):
            step()
            trace.step()
        return timed(step, trace.step)


def to_file(step: Step, folder: str) -> tuple[float, float]:
    """Seconds from the end of a recording to its file: torch's gzip export, and profkit."""
    recording = torch.profiler.profile(record_shapes=True, profile_memory=True)
    recording.start()
    for _ in range(STEPS):
        step()
    began = time.perf_counter()
    recording.stop()
    recording.export_chrome_trace(str(Path(folder) / "bare.json.gz"))
    bare = time.perf_counter() - began
    block = profkit.trace("file", stacks=False, limit=1 << 30, dir=folder, quiet=True)
    with block:
        for _ in range(STEPS):
            step()
        began = time.perf_counter()
    return bare, time.perf_counter() - began


def measured(device: str, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Milliseconds a step by who records, and from the end of a block to its file.

    Args:
        device: Where to train.
        rounds: How often each takes its turn.
    """
    step = transformer_step(device)
    timed(step, nothing)
    lengths: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            lengths.setdefault("no profiler", []).extend(timed(step, nothing))
            lengths.setdefault("torch.profiler", []).extend(under_torch(step, stacks=False))
            lengths.setdefault("profkit.trace", []).extend(under_profkit(step, folder))
            lengths.setdefault("torch.profiler, stacks", []).extend(under_torch(step, stacks=True))
        files = [to_file(step, folder) for _ in range(rounds)]
    step_ms = {name: statistics.median(taken) * 1e3 for name, taken in lengths.items()}
    bare, ours = (statistics.median(column) * 1e3 for column in zip(*files, strict=True))
    return step_ms, {"torch": bare, "profkit": ours}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What recording costs a step.")
    parser.add_argument("--device", default="cpu", help="where to train (cpu)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"turns of each ({ROUNDS})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    step_ms, to_file_ms = measured(options.device, options.rounds)
    for name, ms in step_ms.items():
        print(f"{name:<24} {ms:7.3f} ms a step   {ms / step_ms['no profiler']:.2f} x no profiler")
    ratio = step_ms["profkit.trace"] / step_ms["torch.profiler"]
    print(f"profkit.trace is {ratio:.3f} x torch.profiler with the same options (aim {AIM})")
    bare, ours = to_file_ms["torch"], to_file_ms["profkit"]
    print(f"end of block to file: torch {bare:.0f} ms, profkit {ours:.0f} ms", end="")
    print(f" ({ours / bare:.2f} x)")
    if options.json is not None:
        figures = {"step_ms": step_ms, "to_file_ms": to_file_ms}
        options.json.write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    main()
