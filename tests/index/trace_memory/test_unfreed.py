"""Unfreed bytes of steps: growth is their median where every step leaves some."""

from pathlib import Path

import numpy as np
import pytest

from profkit.index.host.nesting import find_rows_open_at
from profkit.index.trace_memory.live_bytes import growth_per_step_bytes, unfreed_in_steps
from profkit.testing import TraceBuilder
from tests.traces import read_context


@pytest.mark.parametrize(
    ("by_step", "growth"),
    [
        ([10, 10, 10], 10),
        ([90, 10, 12, 11], 11),
        ([90, 0, 0, 90], 0),
        ([0, 10, 10], 0),
        ([], 0),
    ],
)
def test_growth_is_the_median_if_every_step_leaves_bytes(by_step: list[int], growth: int) -> None:
    median = growth_per_step_bytes(np.array(by_step, dtype=np.int64))
    assert abs(median - growth) <= 1


def test_only_allocations_of_steps_without_a_free_count(tmp_path: Path) -> None:
    b = TraceBuilder(memory=True)
    b.compute("aten::mm", 1_000)
    b.alloc(1_000)
    b.advance(1)
    with b.step():
        b.compute("aten::mm", 1_000)
        b.free(b.alloc(2_000))
        b.alloc(3_000)
        b.compute("aten::mm", 1_000)
    with b.step():
        b.compute("aten::mm", 1_000)
        b.alloc(4_000, device=None)
        b.compute("aten::mm", 1_000)
    ctx = read_context(b, tmp_path)

    kept = unfreed_in_steps(ctx.allocations, ctx.steps)
    assert kept.n_bytes.tolist() == [3_000, 4_000]
    assert kept.bytes_by_step(2).tolist() == [3_000, 4_000]


def test_the_innermost_running_event_of_the_thread_is_found(tmp_path: Path) -> None:
    b = TraceBuilder(stacks=True, memory=True)
    with b.frame("train.py", 1, "main"):
        b.advance(5_000)
        b.alloc(1)
        b.advance(1)
        with b.op("aten::linear"), b.op("aten::mm"):
            b.advance(5_000)
            b.alloc(2)
            b.advance(5_000)
        b.advance(5_000)
        b.alloc(3)
        with b.thread(77):
            b.alloc(4)
        b.advance(1)
    b.advance(5_000)
    b.alloc(5)
    ctx = read_context(b, tmp_path)
    memory = ctx.trace.memory

    rows = find_rows_open_at(ctx.events, ctx.tree, memory.lane, memory.ts_ns).tolist()
    assert ["" if row < 0 else ctx.events.name_of(row) for row in rows] == [
        "train.py(1): main",
        "aten::mm",
        "train.py(1): main",
        "",
        "",
    ]
