"""What an allocator asked of the driver, what it gave back, and what was free in the right pool."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profkit.engine.context import Context
from profkit.index.snapshot.annotated_regions import find_annotated_regions
from profkit.index.snapshot.cache_flushes import FlushCause
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.model.snapshot import MemorySnapshot
from profkit.readers.snapshot.columns import convert_snapshot
from profkit.testing import SnapshotBuilder
from profkit.testing.reference_allocator import MIB, ReferenceBlock

SIZES = (512, 700_416, MIB, MIB + 512, 3 * MIB, 12 * MIB, 64 * MIB)


def memory_of(b: SnapshotBuilder) -> DeviceMemory:
    """Return the device memory in a builder's snapshot."""
    snapshot = replace(convert_snapshot(b.to_dict(), len(b.to_bytes())), devices=(0,))
    (memory,) = Context(snapshot=snapshot).device_memories
    return memory


class Watched(SnapshotBuilder):
    """Notes what is free in the pool of every request before the driver is asked."""

    def free_in_pool(self, n_bytes: int, stream: int) -> int:
        small = n_bytes <= MIB
        return sum(
            block.n_bytes
            for segment in self._of_device().segments
            if segment.lane == (stream, (0, 0), small)
            for block in segment.blocks
            if block.state == "inactive"
        )


@settings(max_examples=80, deadline=None)
@given(
    program=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 1000), st.sampled_from((0, 7))), max_size=50
    ),
    expandable=st.booleans(),
)
def test_the_free_bytes_of_each_requests_pool_are_found(
    program: list[tuple[int, int, int]],
    expandable: bool,  # noqa: FBT001
) -> None:
    b = Watched(expandable=expandable)
    held: list[ReferenceBlock] = []
    expected = []
    for kind, choice, stream in program:
        if kind <= 3:
            n_bytes = SIZES[choice % len(SIZES)]
            before, free = b.moment().reserved_bytes, b.free_in_pool(n_bytes, stream)
            held.append(b.alloc(n_bytes, stream=stream))
            grown = b.moment().reserved_bytes - before
            if grown:
                expected.append((grown, n_bytes, free))
        elif kind == 4 and held:
            b.free(held.pop(choice % len(held)))
        elif kind == 5:
            b.empty_cache()
    if not b.to_dict()["device_traces"]:
        return
    requests = memory_of(b).driver_requests

    rows = zip(
        requests.n_bytes.tolist(),
        requests.needed_bytes.tolist(),
        requests.free_bytes.tolist(),
        strict=True,
    )
    for (n_bytes, needed, free), truth in zip(rows, expected, strict=True):
        assert (n_bytes, needed) == truth[:2]
        # A large block that was given more than was asked for, and is gone, counts as shorter.
        assert 0 <= free - truth[2] <= len(program) * MIB


def test_private_pools_and_streams_do_not_share_free_memory() -> None:
    b = SnapshotBuilder()
    b.free(b.alloc(100 * MIB, pool=(0, 1)))
    b.free(b.alloc(100 * MIB, stream=7))
    b.free(b.alloc(60 * MIB))
    b.alloc(80 * MIB)
    requests = memory_of(b).driver_requests
    assert requests.free_bytes.tolist() == [0, 0, 0, 60 * MIB]
    assert not requests.is_fragmented.any()
    assert requests.compact_bytes == (100 + 80) * MIB


def test_common_levels_exclude_private_pools_at_every_moment() -> None:
    b = SnapshotBuilder()
    with b.unrecorded():
        b.alloc(12 * MIB, pool=(0, 1))
    held = b.alloc(14 * MIB)
    b.free(b.alloc(16 * MIB, pool=(0, 1)))
    b.free(held)
    memory = memory_of(b)
    assert memory.active_bytes.tolist() == [mib * MIB for mib in (0, 0, 14, 14, 14, 14, 14, 14, 0)]
    assert memory.reserved_bytes.tolist() == [
        mib * MIB for mib in (0, 14, 14, 14, 14, 14, 14, 14, 14)
    ]
    assert int(memory.replay.active_bytes.max()) == (12 + 14 + 16) * MIB


def test_flushes_have_their_cause() -> None:
    b = SnapshotBuilder(total_bytes=100 * MIB)
    with b.frame("train.py", 3, "main"):
        b.free(b.alloc(60 * MIB))
        b.empty_cache()
        b.free(b.alloc(60 * MIB))
        b.alloc(80 * MIB)
    flushes = memory_of(b).flushes
    assert flushes.cause.tolist() == [FlushCause.EMPTY_CACHE, FlushCause.RETRY]
    assert flushes.n_bytes.tolist() == [60 * MIB, 60 * MIB]
    assert flushes.reallocated_bytes.tolist() == [60 * MIB, 60 * MIB]
    assert flushes.n_calls.tolist() == [1, 1]
    assert flushes.n_reallocations.tolist() == [1, 1]


def test_without_stacks_a_flush_after_a_free_has_an_unknown_cause() -> None:
    b = SnapshotBuilder(with_stacks=False)
    b.free(b.alloc(60 * MIB))
    b.empty_cache()
    b.alloc(60 * MIB)
    assert memory_of(b).flushes.cause.tolist() == [FlushCause.UNKNOWN]


def test_empty_cache_without_a_recorded_stack_is_not_a_retry() -> None:
    b = SnapshotBuilder()
    with b.frame("train.py", 3, "main"):
        b.free(b.alloc(60 * MIB))
        b.alloc(1)
    # As with context="alloc": stacks of requests alone.
    b.with_stacks = False
    b.empty_cache()
    b.with_stacks = True
    with b.frame("train.py", 5, "main"):
        b.alloc(60 * MIB)
    assert memory_of(b).flushes.cause.tolist() == [FlushCause.UNKNOWN]


def test_a_device_without_flushes_has_none() -> None:
    b = SnapshotBuilder()
    b.alloc(1)
    assert len(memory_of(b).flushes) == 0


def test_the_cache_grows_if_reserved_bytes_rise_and_active_bytes_do_not() -> None:
    b = SnapshotBuilder()
    for n in range(1, 41):
        b.free(b.alloc(n * 64 * MIB, stream=n % 4))
    memory = memory_of(b)
    trend = memory.cache_trend
    assert trend is not None
    levels, active = memory.replay.reserved_bytes, memory.replay.active_bytes
    assert trend.reserved_rise_bytes == int(levels.max()) - int(levels[: trend.start].max())
    assert trend.active_rise_bytes == int(active.max()) - int(active[: trend.start].max())
    assert trend.n_rises == 6
    assert memory.is_cache_growing


def test_a_short_history_shows_no_trend() -> None:
    b = SnapshotBuilder()
    b.alloc(1)
    assert memory_of(b).cache_trend is None
    assert not memory_of(b).is_cache_growing


def test_a_region_has_its_peak_and_net_bytes() -> None:
    b = SnapshotBuilder()
    b.alloc(12 * MIB)
    kept = []
    for _ in range(3):
        with b.region("step"):
            with b.region("forward"):
                b.free(b.alloc(40 * MIB))
                kept.append(b.alloc(20 * MIB))
            b.free(b.alloc(16 * MIB))

    region_of = {
        annotated_region.name: annotated_region
        for annotated_region in find_annotated_regions(*_parts(b))
    }
    assert list(region_of) == ["forward", "step"] or list(region_of) == ["step", "forward"]

    # In the third one 12 MiB stand from before, 40 from the first two, and 40 and 20 come to it.
    # A block of 40 MiB is split, so that the next 20 come out of it.
    peak = (12 + 20 + 20 + 40) * MIB
    assert (region_of["forward"].n, region_of["forward"].peak_active_bytes) == (3, peak)
    assert region_of["step"].peak_active_bytes == peak
    assert region_of["forward"].net_active_bytes == region_of["step"].net_active_bytes == 60 * MIB


def test_the_first_region_of_a_complete_history_is_included() -> None:
    b = SnapshotBuilder()
    with b.unrecorded():
        b.alloc(12 * MIB)
    with b.frame("train.py", 3, "main"), b.region("forward"):
        b.free(b.alloc(40 * MIB))
        b.alloc(14 * MIB)
    (region,) = find_annotated_regions(*_parts(b))
    assert (region.name, region.n) == ("forward", 1)
    assert (region.peak_active_bytes, region.net_active_bytes) == (52 * MIB, 14 * MIB)


@pytest.mark.parametrize("with_stacks", [False, True])
def test_a_region_cut_by_the_buffer_is_excluded(with_stacks: bool) -> None:  # noqa: FBT001
    b = SnapshotBuilder(max_entries=4, with_stacks=with_stacks)
    with b.frame("train.py", 3, "main"), b.region("forward"):
        for n in range(6):
            b.alloc((12 + n) * MIB)
    assert find_annotated_regions(*_parts(b)) == ()


def test_a_region_that_frees_earlier_blocks_may_be_incomplete() -> None:
    b = SnapshotBuilder(max_entries=4)
    with b.frame("train.py", 3, "main"), b.region("forward"):
        large = b.alloc(900 * MIB)
        b.free(b.alloc(40 * MIB), large)
        b.alloc(12 * MIB)
    assert find_annotated_regions(*_parts(b)) == ()


def test_a_region_that_began_before_the_history_is_excluded() -> None:
    b = SnapshotBuilder(max_entries=4)
    with b.region("setup"):
        b.alloc(12 * MIB)
        b.alloc(14 * MIB)
        with b.region("late"):
            b.alloc(16 * MIB)
    assert [annotated_region.name for annotated_region in find_annotated_regions(*_parts(b))] == [
        "late"
    ]


@settings(max_examples=60, deadline=None)
@given(
    spans=st.lists(
        st.tuples(st.integers(0, 30_000), st.integers(0, 30_000)), min_size=1, max_size=20
    ),
    seed=st.integers(0, 1000),
)
def test_the_range_maximum_equals_a_linear_search(spans: list[tuple[int, int]], seed: int) -> None:
    from profkit.index.snapshot.annotated_regions import find_range_maximum

    levels = np.random.default_rng(seed).integers(0, 1 << 40, 30_001)
    start = np.array([min(span) for span in spans])
    end = np.array([max(span) for span in spans])
    plain = [int(levels[low : high + 1].max()) for low, high in zip(start, end, strict=True)]
    assert find_range_maximum(levels, start, end).tolist() == plain


def _parts(b: SnapshotBuilder) -> tuple[MemorySnapshot, Any]:
    memory = memory_of(b)
    return memory.snapshot, memory.replay
