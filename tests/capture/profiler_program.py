# ruff: noqa: ANN401  (torch.profiler has few types)
"""Trains a small model and profiles it itself, as the JSON of its first argument says.

It prints what its profiler saw; see ``test_program_profilers.py``.
"""

import contextlib
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

HOW: dict[str, Any] = json.loads(sys.argv[1])
N_STEPS = 20
SCHEDULES = {
    "none": None,
    "twice": torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=2),
    "at-once": torch.profiler.schedule(wait=0, warmup=1, active=2, repeat=1),
    "late": torch.profiler.schedule(wait=12, warmup=2, active=3, repeat=1),
    "endless": torch.profiler.schedule(wait=0, warmup=1, active=1),
}

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = torch.randn(4, 8)


def step() -> None:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


def report(profiler: Any) -> None:
    """Print the operators of a profiler and of its exported trace."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    of_trace = Counter(
        event["name"] for event in events if event.get("cat") in {"cpu_op", "user_annotation"}
    )
    print("trace", sorted(of_trace.items()))
    if not HOW["stacks"]:  # else torch counts Python calls too, of which some are profkit's
        print(
            "keys",
            sorted((key_average.key, key_average.count) for key_average in profiler.key_averages()),
        )


def profile() -> Any:
    return torch.profiler.profile(
        schedule=SCHEDULES[HOW["schedule"]],
        on_trace_ready=report,
        with_stack=HOW["stacks"],
        profile_memory=HOW["memory"],
        record_shapes=HOW["memory"],
    )


@contextlib.contextmanager
def block() -> Iterator[Any]:
    """Open the block of profkit that the program asks for; none under ``profkit run``."""
    if HOW["api"] != "trace":
        yield None
        return
    import profkit

    with profkit.trace("block", **HOW.get("options", {})) as opened:
        yield opened


def batches(n: int) -> Any:
    if HOW["api"] != "steps":
        return range(n)
    import profkit

    return profkit.steps(range(n), "loop")


def train(n: int, profiler: Any, opened: Any) -> None:
    for _ in batches(n):
        step()
        if profiler is not None:
            profiler.step()
        if opened is not None:
            opened.step()


def profile_training() -> None:
    with profile() as profiler:
        train(N_STEPS, profiler, None)


def main() -> None:
    if HOW["thread"]:
        with block() as opened:
            train(3, None, opened)
            thread = threading.Thread(target=profile_training)
            thread.start()
            if HOW["thread"] == "busy":
                while thread.is_alive():
                    (torch.ones(8, 8) @ torch.ones(8, 8)).sum()
            thread.join()
            train(3, None, opened)
    elif HOW["first"] == "profkit":
        with block() as opened:
            train(8, None, opened)
            with profile() as profiler:
                train(N_STEPS, profiler, opened)
            train(4, None, opened)
    else:
        with profile() as profiler, block() as opened:
            train(N_STEPS, profiler, opened)

    print("end")


main()
