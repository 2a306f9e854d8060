"""Flame graphs of two recordings as one, against sums over the events of each."""

from collections import Counter
from pathlib import Path

import numpy as np

from profkit.cli.main import main
from profkit.engine.context import Context
from profkit.model.events import NO_ROW
from profkit.present.flame_difference import FlameDifference, flame_differences
from profkit.testing import TraceBuilder
from tests.traces import load_trace


def training(*, n_steps: int, copies: int, thread: int, line: int) -> TraceBuilder:
    """Steps of one product and some copies, and a thread with less to do."""
    b = TraceBuilder(stacks=True, device_names=())
    with b.thread(thread):
        for _ in range(n_steps):
            with b.step(), b.frame("train.py", line, "main"):
                b.compute("aten::mm", 300_000)
                for _ in range(copies):
                    b.compute("aten::copy_", 20_000)
    with b.thread(thread + 1), b.frame("log.py", line, "write"):
        b.advance(10_000)
    return b


def per_step(ctx: Context) -> Counter[tuple[str, ...]]:
    """Return the time per step of each path below the threads, from the events alone."""
    events, ns_by_path = ctx.events, Counter[tuple[str, ...]]()
    for row in range(len(events)):
        path, at = [], row
        while at != NO_ROW:
            is_step = at in ctx.steps.annotations
            path.append("steps" if is_step else events.name_of(at).rpartition(": ")[2])
            at = int(ctx.tree.parent[at])
        ns_by_path[tuple(reversed(path))] += int(events.dur_ns[row])
    return Counter({path: ns // len(ctx.steps) for path, ns in ns_by_path.items()})


def totals(found: FlameDifference, column: np.ndarray) -> Counter[tuple[str, ...]]:
    return Counter(
        {
            tuple(site.name for site in found.flame.stack(node)[1:]): int(column[node])
            for node in range(len(found.flame))
            if found.flame.parent[node] != NO_ROW
        }
    )


def test_paths_are_joined_whatever_their_lines_and_threads_are_called(tmp_path: Path) -> None:
    builders = (
        training(n_steps=2, copies=5, thread=77, line=10),
        training(n_steps=4, copies=1, thread=5, line=12),
    )
    paths = [b.write(tmp_path / f"{i}.json") for i, b in enumerate(builders)]
    before, after = (Context(trace=load_trace(path)) for path in paths)

    (difference, *_) = flame_differences(before, after)
    assert (difference.flame.name, difference.is_per_step) == ("host-stack", True)
    assert totals(difference, difference.flame.total) == per_step(after)
    assert totals(difference, difference.before) == per_step(before)

    page = tmp_path / "diff.html"
    assert main(["diff", *map(str, paths), "--format", "html", "-o", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert 'id="data-flames"' in text
    assert "less than before" in text
    assert "aten::copy_" in text


def test_a_function_of_one_recording_alone_has_no_time_in_the_other(tmp_path: Path) -> None:
    builders = []
    for name in ("old", "new"):
        b = TraceBuilder(stacks=True, device_names=())
        with b.step(), b.frame("train.py", 3, name):
            b.compute("aten::mm", 100_000)
        builders.append(Context(trace=load_trace(b.write(tmp_path / f"{name}.json"))))
    (difference, *_) = flame_differences(*builders)
    after, before = (
        totals(difference, difference.flame.total),
        totals(difference, difference.before),
    )
    assert (after["steps", "old"], before["steps", "old"]) == (0, 100_000)
    assert (after["steps", "new"], before["steps", "new"]) == (100_000, 0)
