"""What other settings would have reserved is what they do reserve, as another allocator shows."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as with_settings
from hypothesis import strategies as st

from profkit.index.snapshot.allocator.simulate import NEVER
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.index.snapshot.what_if import WhatIf
from profkit.testing import SnapshotBuilder
from profkit.testing.reference_allocator import MIB, ReferenceBlock
from tests.index.snapshots import memories

GIB = 1024 * MIB
Program = Callable[[SnapshotBuilder], None]
Steps = list[tuple[str, int, int]]

SIZES = (512, 700_000, MIB, 3 * MIB, 9 * MIB, 21 * MIB, 48 * MIB, 70 * MIB, 130 * MIB, 300 * MIB)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["alloc"] * 6 + ["free"] * 4 + ["record", "finish", "empty"]),
        st.integers(0, 1 << 20),
        st.sampled_from([0, 0, 0, 7]),
    ),
    min_size=1,
    max_size=80,
)


def ran(program: Program, **settings: object) -> DeviceMemory:
    """Return the memory in a program's snapshot, recorded under some settings."""
    b = SnapshotBuilder(**settings)  # type: ignore[arg-type]
    program(b)
    (memory,) = memories(b)
    return memory


def most_reserved(program: Program, **settings: object) -> int:
    """Return the peak of reserved bytes by the builder's own allocator."""
    return int(ran(program, **settings).replay.reserved_bytes.max())


def program_of(steps: Steps, unrecorded: Sequence[tuple[str, int, int]] = ()) -> Program:
    """Return a program of some steps, of which the first are not recorded."""

    def program(b: SnapshotBuilder) -> None:
        held: list[ReferenceBlock] = []
        with b.unrecorded():
            for step in unrecorded:
                _take(b, held, *step)
        b.alloc(512)
        for step in steps:
            _take(b, held, *step)

    return program


def _take(
    b: SnapshotBuilder, held: list[ReferenceBlock], what: str, choice: int, stream: int
) -> None:
    if what == "alloc":
        # A little less than a whole length leaves a rest that is not split off.
        n_bytes = SIZES[choice % len(SIZES)] - choice % 4 * 100_000
        block = b.alloc_or_none(max(n_bytes, 1), stream=stream)
        held.extend([block] if block is not None else [])
    elif what == "free" and held:
        b.free(held.pop(choice % len(held)))
    elif what == "record" and held:
        b.record_stream(held[choice % len(held)], 9)
    elif what == "finish":
        b.finish(9)
    elif what == "empty":
        b.empty_cache()


@with_settings(max_examples=120, deadline=None)
@given(steps=STEPS, limit=st.sampled_from([None, 32 * MIB, 64 * MIB, 128 * MIB]))
def test_reserved_bytes_are_reproduced_at_every_request(steps: Steps, limit: int | None) -> None:
    assert ran(program_of(steps), max_split_bytes=limit).what_if.max_error_bytes == 0


@with_settings(max_examples=100, deadline=None)
@given(before=STEPS, steps=STEPS, limit=st.sampled_from([None, 32 * MIB, 128 * MIB]))
def test_a_history_recorded_from_the_middle_is_reproduced(
    before: Steps, steps: Steps, limit: int | None
) -> None:
    memory = ran(program_of(steps, before), max_split_bytes=limit)
    assert memory.what_if.max_error_bytes == 0


@with_settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_expandable_segments_are_reproduced(steps: Steps) -> None:
    steps = [step for step in steps if step[0] != "empty"]
    assert ran(program_of(steps), expandable=True).what_if.max_error_bytes == 0


@with_settings(max_examples=80, deadline=None)
@given(steps=STEPS)
def test_every_max_split_size_is_predicted_exactly(steps: Steps) -> None:
    # A cache that was emptied when there was nothing to give back left no trace.
    program = program_of([step for step in steps if step[0] != "empty"])
    simulated = ran(program).what_if
    for outcome in simulated.split_results:
        limit = outcome.settings.max_split_bytes
        assert outcome.peak_bytes == most_reserved(program, max_split_bytes=limit)


@with_settings(max_examples=80, deadline=None)
@given(steps=STEPS)
def test_expandable_segments_are_predicted_exactly(steps: Steps) -> None:
    program = program_of([step for step in steps if step[0] != "empty"])
    outcome = ran(program).what_if.expandable
    assert outcome is not None
    assert outcome.peak_bytes == most_reserved(program, expandable=True)


@with_settings(max_examples=60, deadline=None)
@given(steps=STEPS, total=st.sampled_from([300 * MIB, 500 * MIB, 800 * MIB]))
def test_a_full_device_is_reproduced(steps: Steps, total: int) -> None:
    simulated = ran(program_of(steps), total_bytes=total).what_if
    assert simulated.max_error_bytes == 0
    assert simulated.recorded.capacity_bytes is None or simulated.recorded.capacity_bytes <= total


def split_by_shorter_ones(b: SnapshotBuilder) -> None:
    """Split each long block by a shorter one that stays, so the next is taken anew."""
    for _ in range(10):
        b.free(b.alloc(200 * MIB))
        b.alloc(120 * MIB)


def test_a_limit_prevents_splitting_of_large_blocks() -> None:
    simulated = ran(split_by_shorter_ones).what_if
    assert simulated.recorded.peak_bytes == 10 * 200 * MIB
    split, expandable = simulated.best_split, simulated.expandable
    assert split is not None
    assert expandable is not None
    # One block of 200 MiB, and ten of 120 beside it. Of limits that come to the same the largest
    # is named, which split_results the most.
    assert split.peak_bytes == (200 + 10 * 120) * MIB
    assert split.settings.alloc_conf == "max_split_size_mb:128"
    assert split.peak_bytes == most_reserved(split_by_shorter_ones, max_split_bytes=128 * MIB)
    # Where segments grow, the last long one lies behind nine shorter ones.
    assert expandable.peak_bytes == (9 * 120 + 200) * MIB


def test_a_limit_does_not_help_fragmented_small_blocks() -> None:
    def program(b: SnapshotBuilder) -> None:
        b.free(*[b.alloc(24 * MIB) for _ in range(40)])
        b.alloc(900 * MIB)

    simulated = ran(program).what_if
    split, expandable = simulated.best_split, simulated.expandable
    assert split is not None
    assert expandable is not None
    assert simulated.recorded.peak_bytes == split.peak_bytes == (40 * 24 + 900) * MIB
    assert expandable.peak_bytes == 40 * 24 * MIB
    assert split.settings.alloc_conf == "max_split_size_mb:512"


def test_a_limit_in_use_is_also_simulated_without() -> None:
    def program(b: SnapshotBuilder) -> None:
        b.free(b.alloc(600 * MIB))
        held = [b.alloc(50 * MIB) for _ in range(12)]
        b.free(*held)

    simulated = ran(program, max_split_bytes=64 * MIB).what_if
    assert simulated.recorded.peak_bytes == 1200 * MIB
    split = simulated.best_split
    assert split is not None
    assert (split.settings.alloc_conf, split.peak_bytes) == ("", 600 * MIB)


def test_expandable_segments_are_simulated_without_a_limit() -> None:
    def program(b: SnapshotBuilder) -> None:
        for _ in range(5):
            held = [b.alloc(50 * MIB) for _ in range(4)]
            b.alloc(2 * MIB)
            b.free(*held)

    simulated = ran(program, expandable=True, max_split_bytes=64 * MIB).what_if
    assert simulated.split_results == ()
    expandable = simulated.expandable
    assert expandable is not None
    assert expandable.peak_bytes == most_reserved(program, expandable=True)
    assert expandable.peak_bytes < simulated.recorded.peak_bytes // 2
    assert ran(program, expandable=True).what_if.expandable is None


def test_the_initial_state_is_unchanged() -> None:
    def program(b: SnapshotBuilder) -> None:
        with b.unrecorded():
            kept = b.alloc(5 * MIB)
            b.free(b.alloc(300 * MIB))
            odd = b.alloc(16 * MIB - 100_000)
        b.alloc(250 * MIB)
        b.free(kept, odd)
        b.alloc(20 * MIB)

    simulated = ran(program).what_if
    assert simulated.max_error_bytes == 0
    assert simulated.recorded.requests is not None
    assert simulated.recorded.requests.begin.n_bytes.sum() == (20 + 300) * MIB


def test_a_block_from_before_the_history_includes_its_unsplit_rest() -> None:
    def program(b: SnapshotBuilder) -> None:
        with b.unrecorded():
            b.free(b.alloc(30 * MIB))
            block = b.alloc(30 * MIB - 512 * 1024)
        b.alloc(2 * MIB)
        b.free(block)

    memory = ran(program)
    requests = memory.what_if.recorded.requests
    assert requests is not None
    # The half mebibyte behind it was not split off, and nothing else can have it.
    assert requests.begin.block_bytes.tolist() == [30 * MIB]


def test_a_failed_allocation_is_simulated_again() -> None:
    def program(b: SnapshotBuilder) -> None:
        for _ in range(4):
            b.free(b.alloc(200 * MIB))
            b.alloc(120 * MIB)
        b.alloc_or_none(300 * MIB)

    simulated = ran(program, total_bytes=1000 * MIB).what_if
    (shortage,) = ran(program, total_bytes=1000 * MIB).allocation_failures
    assert simulated.recorded.capacity_bytes == 1000 * MIB
    met = simulated.setting_that_serves(shortage.place)
    assert met is not None
    assert met.settings.alloc_conf == "expandable_segments:True"
    assert ran(program, total_bytes=1000 * MIB, expandable=True).allocation_failures == ()


def test_a_setting_that_fails_an_earlier_allocation_is_rejected() -> None:
    def program(b: SnapshotBuilder) -> None:
        whole = b.alloc(400 * MIB)
        b.free(whole)
        parts = [b.alloc(100 * MIB) for _ in range(4)]
        b.free(*parts)
        b.alloc(512)
        b.alloc_or_none(500 * MIB)
        kept = [b.alloc(100 * MIB) for _ in range(4)]
        b.alloc_or_none(120 * MIB)
        assert kept

    simulated = ran(program, total_bytes=500 * MIB).what_if
    assert simulated.is_reproduced
    assert all(
        outcome.is_complete == (outcome.failed_at == NEVER) for outcome in simulated.split_results
    )
    assert simulated.best_split is None or simulated.best_split.is_complete


def test_a_history_that_cannot_be_reproduced_has_no_prediction() -> None:
    def program(b: SnapshotBuilder) -> None:
        b.free(b.alloc(200 * MIB))
        b.alloc(22 * MIB)

    memory = ran(program, max_split_bytes=64 * MIB)
    # The same history, said to be of an allocator without the limit: that would not ask for 22.
    wrong = replace(
        memory.what_if.recorded, settings=replace(memory.settings, max_split_bytes=None)
    )
    broken = WhatIf(wrong)
    assert broken.max_error_bytes == 22 * MIB
    assert not broken.is_reproduced
    assert broken.expandable is None
    assert broken.split_results == ()
    assert broken.best_split is None
    assert broken.setting_that_serves(0) is None


@pytest.mark.parametrize("n_kept", [1, 2])
def test_a_history_with_an_impossible_initial_state_has_no_prediction(n_kept: int) -> None:
    b = SnapshotBuilder(max_entries=n_kept)
    b.free(b.alloc(30 * MIB))
    b.alloc(30 * MIB)
    whole = b.to_dict()
    whole["segments"][0]["total_size"] = 20 * MIB
    (memory,) = memories(b, whole)
    assert not memory.what_if.is_reproduced
    assert memory.what_if.split_results == ()
