"""The peak of active bytes of each step, from the times of the history."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profkit.engine.context import Context
from profkit.engine.figures.memory import summarize_memory
from profkit.index.snapshot.annotated_regions import find_peaks_between
from profkit.model.events import MISSING
from profkit.model.live_memory import LiveMemory, MemorySample
from profkit.testing import SnapshotBuilder
from profkit.testing.reference_allocator import ReferenceBlock
from tests.index.snapshots import memories

MIB = 1 << 20
Step = list[tuple[bool, int]]
STEPS = st.lists(
    st.lists(st.tuples(st.booleans(), st.integers(1, 8)), max_size=6), min_size=2, max_size=8
)


def ran(steps: list[Step], b: SnapshotBuilder) -> tuple[list[int], list[int]]:
    """Let a program run; when each step ended, and the most that was active within it."""
    live: list[ReferenceBlock] = []
    ends, peaks = [], []
    for step in steps:
        peak = b.moment().active_bytes
        for frees, n_mib in step:
            if frees and live:
                b.free(live.pop(0))
            else:
                live.append(b.alloc(2 * n_mib * MIB))
            peak = max(peak, b.moment().active_bytes)
        ends.append(b.now_us)
        peaks.append(peak)
    return ends, peaks


@given(steps=STEPS)
def test_each_peak_is_the_highest_active_bytes_of_the_step(steps: list[Step]) -> None:
    b = SnapshotBuilder()
    first = b.alloc(2 * MIB)
    b.free(first)
    begin = b.now_us
    ends, peaks = ran(steps, b)
    (memory,) = memories(b)
    step_peaks = find_peaks_between(memory.snapshot, memory.replay, np.array([begin, *ends]))
    assert step_peaks.tolist() == peaks


def test_a_step_before_a_truncated_history_has_no_peak() -> None:
    b = SnapshotBuilder(max_entries=6)
    ends, peaks = ran([[(False, 1)], [(False, 2)], [(False, 3)], [(True, 1), (True, 1)]], b)
    (memory,) = memories(b)
    step_peaks = find_peaks_between(
        memory.snapshot, memory.replay, np.array([ends[0] - 1, *ends])
    ).tolist()
    assert step_peaks[0] == MISSING
    assert step_peaks[-1] == peaks[-1]


def test_the_report_has_the_peak_of_each_monitored_step_but_the_first() -> None:
    b = SnapshotBuilder()
    ends, peaks = ran([[(False, 1)], [(False, 4), (True, 1)], [(False, 2)]], b)
    (memory,) = memories(b)
    began_us = ends[0]
    looks = tuple(MemorySample(n, (end - began_us) * 1000) for n, end in enumerate(ends, start=1))
    live = LiveMemory("train", "user", len(looks), 1, looks, began_unix_us=began_us)
    summary = summarize_memory(Context(snapshot=memory.snapshot, live=live))
    assert summary is not None
    assert [step.peak_bytes for step in summary.steps] == [None, *peaks[1:]]


@pytest.mark.parametrize("layout", ["2.0"])
def test_a_history_without_times_has_no_step_peaks(layout: str) -> None:
    b = SnapshotBuilder()
    ends, _ = ran([[(False, 1)], [(False, 2)]], b)
    (memory,) = memories(b, b.to_dict(layout))  # type: ignore[arg-type]
    peaks = find_peaks_between(memory.snapshot, memory.replay, np.array(ends))
    assert peaks.tolist() == [MISSING]
