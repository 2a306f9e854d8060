"""Overhead of recording per step: ``profkit.trace`` against bare ``torch.profiler``, in one run.

A small transformer is trained without a profiler, under ``torch.profiler`` with the options of
``profkit.trace``, under ``profkit.trace``, and under ``torch.profiler`` with Python stacks. The
four alternate, so that a change of the machine's speed affects all of them. Then the time from the
end of a block to its file is compared with ``export_chrome_trace("….json.gz")``, and the time for
which a loop stands still at the end of its window with that of the same call in
``on_trace_ready``.

Run ``python benchmarks/capture_overhead.py [--device cuda] [--json FILE]``. On a GPU the device is
idle at the start and end of each measured step.
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
from benchmarks.figures import compared

ROUNDS = 9
STEPS = 12
TARGET = 1.02

Step = Callable[[], None]


def build_transformer_step(device: str) -> Step:
    """Build a training step of a small transformer that ends with a device synchronization."""
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
    """Step times in seconds; ``ended`` is called after each step and not measured."""
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
    """Step times under ``torch.profiler``."""
    recording = torch.profiler.profile(record_shapes=True, profile_memory=True, with_stack=stacks)
    recording.start()
    with torch.profiler.record_function("ProfilerStep#0"):
        lengths = timed(step, nothing)
    recording.stop()
    return lengths


def under_profkit(step: Step, folder: str) -> list[float]:
    """Step times in the window from which profkit takes times."""
    with profkit.trace(
        "step", wait=0, warmup=2, active=STEPS, limit=1 << 30, dir=folder, quiet=True
    ) as trace:
        for _ in range(2):
            step()
            trace.step()
        return timed(step, trace.step)


def to_file(step: Step, folder: str) -> tuple[float, float]:
    """Seconds from the end of a recording to its file, with torch's gzip export and profkit."""
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


def measure_loop_stop(step: Step, folder: str) -> tuple[float, float]:
    """Seconds for which ``step()`` at the end of a window stops the loop, with torch and profkit.

    It is the longest of the calls. Both write a compressed file in it.
    """

    def written(recording: torch.profiler.profile) -> None:
        recording.export_chrome_trace(str(Path(folder) / "window.json.gz"))

    def longest(ended: Step) -> float:
        calls = []
        for _ in range(STEPS + 2):
            step()
            began = time.perf_counter()
            ended()
            calls.append(time.perf_counter() - began)
        return max(calls)

    schedule = torch.profiler.schedule(wait=0, warmup=1, active=STEPS, repeat=1)
    with torch.profiler.profile(
        schedule=schedule, on_trace_ready=written, record_shapes=True, profile_memory=True
    ) as recording:
        bare = longest(recording.step)
    with profkit.trace(
        "window", warmup=1, active=STEPS, stacks=False, limit=1 << 30, dir=folder, quiet=True
    ) as trace:
        ours = longest(trace.step)
    return bare, ours


def measure(device: str, rounds: int) -> dict[str, dict[str, float]]:
    """Medians in milliseconds, each by profiler.

    Returns:
        ``step_ms``: of a step; ``to_file_ms``: from the end of a block to its file;
        ``loop_stop_ms``: for which the end of a window stops the loop.
    """
    step = build_transformer_step(device)
    timed(step, nothing)
    lengths: dict[str, list[float]] = {}

    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            lengths.setdefault("no profiler", []).extend(timed(step, nothing))
            lengths.setdefault("torch.profiler", []).extend(under_torch(step, stacks=False))
            lengths.setdefault("profkit.trace", []).extend(under_profkit(step, folder))
            lengths.setdefault("torch.profiler, stacks", []).extend(under_torch(step, stacks=True))
        files = [to_file(step, folder) for _ in range(rounds)]
        stops = [measure_loop_stop(step, folder) for _ in range(rounds)]

    return {
        "step_ms": {name: statistics.median(taken) * 1e3 for name, taken in lengths.items()},
        "to_file_ms": medians_ms(files),
        "loop_stop_ms": medians_ms(stops),
    }


def medians_ms(pairs: list[tuple[float, float]]) -> dict[str, float]:
    """Return the medians of seconds with torch and with profkit, in milliseconds."""
    bare, ours = (statistics.median(column) * 1e3 for column in zip(*pairs, strict=True))
    return {"torch": bare, "profkit": ours}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What recording costs a step.")
    parser.add_argument("--device", default="cpu", help="device to train on (cpu)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"runs of each ({ROUNDS})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = measure(options.device, options.rounds)
    step_ms = figures["step_ms"]
    for name, ms in step_ms.items():
        print(f"{name:<24} {ms:7.3f} ms per step {ms / step_ms['no profiler']:.2f} x no profiler")

    ratio = step_ms["profkit.trace"] / step_ms["torch.profiler"]
    compared("a recorded step, of one under torch.profiler", ratio, "x", TARGET)
    bare, ours = figures["to_file_ms"]["torch"], figures["to_file_ms"]["profkit"]
    print(f"end of block to file: torch {bare:.0f} ms, profkit {ours:.0f} ms")
    compared("from the end of a block to its file, of torch's export", ours / bare, "x", 1.0)
    bare, ours = figures["loop_stop_ms"]["torch"], figures["loop_stop_ms"]["profkit"]
    print(f"end of a window in a loop: torch {bare:.0f} ms, profkit {ours:.0f} ms")
    compared("a loop's stop at the end of a window, of torch's export", ours / bare, "x", 1.0)
    if options.json is not None:
        options.json.write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    main()
