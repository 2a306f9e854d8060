"""Figures over time, against counting moment by moment."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from profkit.index.device.counters import (
    CounterSeries,
    bin_edges,
    counter_of_changes,
    covered_share,
    downsample,
    launch_queue,
)
from profkit.index.intervals import union
from profkit.testing import TraceBuilder
from tests.traces import read_context

CHANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(-3, 3)), max_size=40)


def as_levels(changes: list[tuple[int, int]]) -> CounterSeries:
    table = np.array(changes, dtype=np.int64).reshape(-1, 2)
    return counter_of_changes(table[:, 0], table[:, 1])


def value_at(levels: CounterSeries, moment: int) -> int:
    before = [v for t, v in zip(levels.at_ns, levels.values, strict=True) if t <= moment]
    return int(before[-1]) if before else 0


@given(CHANGES)
def test_a_level_is_the_sum_of_all_changes_so_far(changes: list[tuple[int, int]]) -> None:
    levels = as_levels(changes)
    for moment in range(62):
        assert value_at(levels, moment) == sum(by for at, by in changes if at <= moment)
    assert (np.diff(levels.at_ns) > 0).all()


@given(CHANGES, st.integers(2, 20))
def test_downsampling_preserves_maxima_and_the_last_value(
    changes: list[tuple[int, int]], most: int
) -> None:
    levels = as_levels(changes)
    few = downsample(levels, most)
    assert len(few) <= max(most, 1)
    if not len(levels):
        return
    assert max(few.values) == max(levels.values)
    assert few.values[-1] == levels.values[-1]
    first, last = int(levels.at_ns[0]), int(levels.at_ns[-1])
    for moment in range(first, last + 1):
        assert value_at(few, moment) >= value_at(levels, moment)


def test_the_queue_is_what_was_launched_and_has_not_started(tmp_path: Path) -> None:
    b = TraceBuilder()
    with b.step():
        for _ in range(3):
            b.launch("aten::mm", kernel="gemm", host_ns=10_000, device_ns=50_000)
        b.kernel("orphans_from_before_recording", 1_000, correlation=99_999)
    ctx = read_context(b, tmp_path)
    queue = launch_queue(ctx.events, ctx.launches, ctx.devices[0].rows)
    starts = [(e.ts_ns, (e.args or {})["correlation"]) for e in b.events if e.cat == "kernel"]
    calls = {(e.args or {})["correlation"]: e.ts_ns for e in b.events if e.cat == "cuda_runtime"}
    for moment in range(0, 250_000, 500):
        waiting = sum(calls[c] <= moment < at for at, c in starts if c in calls)
        assert value_at(queue, moment) == waiting
    assert queue.values[-1] == 0
    assert max(queue.values) == 2


def test_shares_of_bins_add_up_to_the_covered_time() -> None:
    covered = union(np.array([5, 20, 90]), np.array([12, 50, 97]))
    edges = bin_edges(0, 100, 7)
    assert edges[0] == 0
    assert edges[-1] == 100
    share = covered_share(covered, edges)
    assert abs(float((share * np.diff(edges)).sum()) - covered.total_ns) < 1e-6
    assert ((share >= 0) & (share <= 1)).all()


def test_bins_are_at_least_a_nanosecond_long() -> None:
    assert bin_edges(7, 10, 1000).tolist() == [7, 8, 9, 10]
