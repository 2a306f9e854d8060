"""Frees pending on another stream, as opposed to frees that complete at once."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profkit.index.snapshot.replay import measure_peak_pending_free
from profkit.testing import SnapshotBuilder
from profkit.testing.reference_allocator import MIB, ReferenceBlock
from tests.index.snapshots import memories


def most(b: SnapshotBuilder) -> int:
    (memory,) = memories(b)
    return measure_peak_pending_free(memory.snapshot, memory.replay)


def test_frees_that_complete_at_once_are_not_pending() -> None:
    b = SnapshotBuilder()
    for _ in range(5):
        b.free(b.alloc(8 * MIB))
    assert most(b) == 0


def test_a_block_used_by_another_stream_is_pending_until_it_finishes() -> None:
    b = SnapshotBuilder()
    lent = [b.alloc(12 * MIB), b.alloc(14 * MIB), b.alloc(16 * MIB)]
    for block in lent:
        b.record_stream(block, 9)
    b.free(lent[0], lent[1])
    b.alloc(MIB)
    b.finish(9)
    b.free(lent[2])
    assert most(b) == 26 * MIB


def test_blocks_pending_at_the_end_count() -> None:
    b = SnapshotBuilder()
    block = b.alloc(12 * MIB)
    b.record_stream(block, 9)
    b.free(block)
    assert most(b) == 12 * MIB
    (memory,) = memories(b)
    segments = memory.snapshot.segments
    assert int((segments.active_bytes - segments.allocated_bytes).sum()) == 12 * MIB


def test_a_completion_without_its_request_is_not_pending() -> None:
    b = SnapshotBuilder(max_entries=4)
    b.free(b.alloc(8 * MIB))
    b.alloc(3 * MIB)
    b.alloc(3 * MIB)
    b.alloc(3 * MIB)
    (memory,) = memories(b)
    assert len(memory.replay.earlier_frees) == 1
    assert most(b) == 0


@pytest.mark.parametrize("kept", ["free_completed", "free_requested"])
def test_a_history_without_completions_or_requests_has_no_pending_frees(kept: str) -> None:
    b = SnapshotBuilder()
    for _ in range(5):
        b.free(b.alloc(8 * MIB))
    whole = b.to_dict()
    (trace,) = whole["device_traces"]
    trace[:] = [entry for entry in trace if entry["action"] in {"alloc", kept}]
    (memory,) = memories(b, whole)
    assert measure_peak_pending_free(memory.snapshot, memory.replay) == 0


def _walked(entries: list[dict[str, Any]]) -> int:
    """Return the most that waited, by walking the entries one by one."""
    waiting: dict[int, int] = {}
    most = 0
    for entry, following in zip(entries, [*entries[1:], {}], strict=True):
        if entry["action"] == "free_requested":
            same = following.get("addr") == entry["addr"]
            if not (same and following["action"] == "free_completed"):
                waiting[entry["addr"]] = entry["size"]
        elif entry["action"] == "free_completed":
            waiting.pop(entry["addr"], None)
        most = max(most, sum(waiting.values()))
    return most


@settings(max_examples=80, deadline=None)
@given(program=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1000)), max_size=60))
def test_the_peak_agrees_with_a_walk_through_the_history(program: list[tuple[int, int]]) -> None:
    b = SnapshotBuilder()
    held: list[ReferenceBlock] = []
    for kind, choice in program:
        if kind <= 1 or not held:
            held.append(b.alloc((choice + 1) * 512))
        elif kind == 2:
            b.record_stream(held[choice % len(held)], 9)
        elif kind == 3:
            b.free(held.pop(choice % len(held)))
        else:
            b.finish(9)
    if program:
        assert most(b) == _walked(b.to_dict()["device_traces"][0])
