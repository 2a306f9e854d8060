"""A snapshot's history played backward meets the program that ran forward, to the byte."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profkit.engine.context import Context
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.index.snapshot.replay import requested_peak_bytes
from profkit.model.events import NO_ROW
from profkit.model.snapshot import Action, MemorySnapshot
from profkit.readers.open import load
from profkit.readers.snapshot.columns import convert_snapshot
from profkit.testing import SnapshotBuilder
from profkit.testing.reference_allocator import MIB, ReferenceBlock
from profkit.testing.snapshot_builder import Layout, Moment
from tests.index.snapshots import memories

SIZES = (1, 512, 700_000, MIB, MIB + 1, 3 * MIB, 9 * MIB, 12 * MIB, 64 * MIB)


@dataclass
class Run:
    """A random program, and what stood after each of its actions."""

    b: SnapshotBuilder
    held: list[ReferenceBlock] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)

    def act(self, kind: int, choice: int) -> None:
        b, held = self.b, self.held
        with b.frame("train.py", kind, "main"):
            if kind <= 3:
                block = b.alloc_or_none(SIZES[choice % len(SIZES)], stream=(0, 7)[choice % 5 == 0])
                if block is not None:
                    held.append(block)
            elif kind <= 6 and held:
                b.free(held.pop(choice % len(held)))
            elif kind == 7 and held:
                b.record_stream(held[choice % len(held)], 9)
            elif kind == 8:
                b.finish(9)
            elif kind == 9:
                b.empty_cache()

        self.moments.append(b.moment())


programs = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 10_000)), max_size=60)


def ran(program: list[tuple[int, int]], **options: object) -> Run:
    run = Run(SnapshotBuilder(total_bytes=400 * MIB, **options))  # type: ignore[arg-type]
    for kind, choice in program:
        run.act(kind, choice)
    return run


@settings(max_examples=80, deadline=None)
@given(program=programs, n_before=st.integers(0, 20), expandable=st.booleans())
def test_live_blocks_are_reconstructed_at_every_moment(
    program: list[tuple[int, int]],
    n_before: int,
    expandable: bool,  # noqa: FBT001
) -> None:
    run = Run(SnapshotBuilder(total_bytes=400 * MIB, expandable=expandable))
    with run.b.unrecorded():
        for kind, choice in program[:n_before]:
            run.act(kind, choice)
    run.moments.clear()
    for kind, choice in program[n_before:]:
        run.act(kind, choice)
    for memory in memories(run.b):
        for moment in run.moments:
            live = memory.live_blocks_at(moment.n_entries)
            assert sorted(live.address.tolist()) == [block[0] for block in moment.blocks]
            _check_moment(memory, moment)


def _check_moment(memory: DeviceMemory, moment: Moment) -> None:
    place = moment.n_entries
    live = memory.live_blocks_at(place)
    truth = {block[0]: block for block in moment.blocks}
    lines = memory.lines
    for address, n_bytes, stack, is_freed, is_before_recording in zip(
        live.address.tolist(),
        live.n_bytes.tolist(),
        live.stack.tolist(),
        live.is_freed.tolist(),
        live.is_before_recording.tolist(),
        strict=True,
    ):
        _, given_bytes, requested_bytes, frames = truth[address]
        assert n_bytes == (requested_bytes if is_freed else given_bytes)
        told = tuple((f.file, f.line, f.function) for f in lines.stacks.of(stack))
        # Of what came before the history and is gone only the end was seen.
        assert told == (() if is_before_recording else frames)

    assert int(memory.replay.reserved_bytes[place]) == moment.reserved_bytes
    assert int(memory.segment_map_at(memory.replay.end).free_bytes.sum()) >= 0


@settings(max_examples=60, deadline=None)
@given(program=programs, expandable=st.booleans())
def test_levels_are_the_live_bytes_within_rounding(
    program: list[tuple[int, int]],
    expandable: bool,  # noqa: FBT001
) -> None:
    run = ran(program, expandable=expandable)
    for memory in memories(run.b):
        level, reserved = memory.replay.active_bytes, memory.replay.reserved_bytes
        for moment in run.moments:
            place = moment.n_entries
            assert int(level[place]) == int(memory.live_blocks_at(place).n_bytes.sum())
            # Of what was freed later only the request is known; of all else what it took.
            asked = sum(block[2] for block in moment.blocks)
            assert asked <= int(level[place]) <= moment.active_bytes <= int(reserved[place])


@settings(max_examples=60, deadline=None)
@given(program=programs)
def test_without_completions_requested_frees_end_all_but_pending_blocks(
    program: list[tuple[int, int]],
) -> None:
    run = ran(program)
    whole = run.b.to_dict()
    for trace in whole["device_traces"]:
        trace[:] = [entry for entry in trace if entry["action"] != "free_completed"]
    for memory, device in zip(memories(run.b, whole), memories(run.b), strict=True):
        replay, lost = memory.replay, device.replay
        if not (memory.snapshot.history.action == Action.FREE_REQUESTED).any():
            continue
        # What stands in the end stands since its allocation; nothing else does.
        assert int(replay.active_bytes[0]) == int(lost.active_bytes[0]) == 0
        assert len(replay.live) == len(lost.live)
        assert (replay.since != NO_ROW).all()


@settings(max_examples=60, deadline=None)
@given(program=programs)
def test_the_requested_peak_exceeds_the_peak_by_rounding_only(
    program: list[tuple[int, int]],
) -> None:
    run = ran(program)
    for memory in memories(run.b):
        replay, snapshot = memory.replay, memory.snapshot
        stands = replay.since[replay.since != NO_ROW]
        rounded = replay.n_bytes[stands] - snapshot.history.n_bytes[replay.rows[stands]]
        assert (rounded >= 0).all()
        beyond = requested_peak_bytes(snapshot, replay) - int(replay.active_bytes.max())
        assert 0 <= beyond <= int(rounded.sum())


def test_rounding_of_later_blocks_does_not_raise_earlier_levels() -> None:
    b = SnapshotBuilder()
    b.alloc(2 * MIB)
    # A large block is cut only where more than 1 MiB is left of it.
    for _ in range(8):
        b.alloc(19 * MIB + 1)
    (memory,) = memories(b)
    blocks = memory.snapshot.blocks
    assert int(blocks.n_bytes.max()) > 19 * MIB + 512
    assert int(memory.replay.active_bytes[0]) == 0
    assert (memory.replay.active_bytes <= memory.replay.reserved_bytes).all()


@settings(max_examples=60, deadline=None)
@given(program=programs)
def test_free_blocks_are_reconstructed(program: list[tuple[int, int]]) -> None:
    # Lengths that are given as they are asked for, so that the history tells them exactly.
    run = Run(SnapshotBuilder(total_bytes=400 * MIB))
    for kind, choice in program:
        exact = [place for place, size in enumerate(SIZES) if size % 512 == 0]
        run.act(kind, exact[choice % len(exact)] if kind <= 3 else choice)

    for memory in memories(run.b):
        for moment in run.moments:
            layout = memory.segment_map_at(moment.n_entries)
            given_more = any(block[1] != block[2] for block in moment.blocks)
            if given_more:
                assert int(layout.free_bytes.sum()) >= sum(size for _, size in moment.holes)
                continue
            free_ranges = zip(layout.free_address.tolist(), layout.free_bytes.tolist(), strict=True)
            assert list(free_ranges) == list(moment.holes)
            assert layout.unreleasable_bytes + layout.releasable_bytes == int(
                layout.free_bytes.sum()
            )
            assert int(layout.unreleasable_by_block.sum()) == layout.unreleasable_bytes


def test_a_reused_address_is_two_blocks() -> None:
    b = SnapshotBuilder()
    with b.frame("a.py", 1, "f"):
        first = b.alloc(12 * MIB)
    b.free(first)
    with b.frame("b.py", 2, "g"):
        second = b.alloc(12 * MIB)
    assert second.address == first.address
    (memory,) = memories(b)
    assert memory.replay.alloc.tolist() == [1, 4]
    assert memory.replay.free.tolist() == [3, NO_ROW]
    assert len(memory.replay.earlier_frees) == 0


def test_frees_of_earlier_blocks_are_not_leaks_or_allocations() -> None:
    b = SnapshotBuilder()
    with b.unrecorded():
        early = b.alloc(12 * MIB)
    b.free(early)
    (memory,) = memories(b)
    assert memory.replay.earlier_frees.tolist() == [1]
    assert len(memory.replay.live) == 0
    assert memory.replay.active_bytes.tolist() == [12 * MIB, 12 * MIB, 0]
    assert memory.live_blocks_at(0).is_before_recording.tolist() == [True]


def test_a_block_pending_on_a_stream_is_active() -> None:
    b = SnapshotBuilder()
    block = b.alloc(12 * MIB)
    b.record_stream(block, 3)
    b.free(block)
    (memory,) = memories(b)
    assert memory.replay.free.tolist() == [NO_ROW]
    assert memory.replay.active_bytes.tolist() == [0, 0, 12 * MIB, 12 * MIB]


def test_a_truncated_history_ends_at_the_state_of_the_snapshot() -> None:
    b = SnapshotBuilder(max_entries=7)
    held = [b.alloc(12 * MIB) for _ in range(9)]
    b.free(*held[:5])
    (memory,) = memories(b)
    assert int(memory.replay.active_bytes[-1]) == 4 * 12 * MIB
    assert int(memory.replay.active_bytes[0]) == 8 * 12 * MIB
    # Of the first of five frees only the completion is among the last seven entries; of one none.
    assert len(memory.replay.earlier_frees) == 4


@pytest.mark.parametrize("layout", get_args(Layout))
def test_every_snapshot_format_has_the_same_memory(tmp_path: Path, layout: Layout) -> None:
    b = SnapshotBuilder()
    with b.frame("train.py", 3, "main"):
        held = [b.alloc(size) for size in SIZES]
        b.record_stream(held[3], 5)
        b.free(held[2], held[3], held[5])
    b.device = 1
    with b.frame("other.py", 4, "main"):
        b.alloc(5)

    snapshot = load(b.write(tmp_path / "s.pickle.gz", layout))
    assert isinstance(snapshot, MemorySnapshot)

    first, second = Context(snapshot=snapshot).device_memories
    b.device = 0
    truth = b.moment()
    live = first.live_blocks_at(first.replay.end)
    assert sorted(zip(live.address.tolist(), live.n_bytes.tolist(), strict=True)) == [
        block[:2] for block in truth.blocks
    ]
    assert int(live.n_bytes.sum()) == truth.active_bytes

    # Before torch 2.0 an allocation is told by the history of its block.
    told = {first.lines.location(line).place for line in first.lines.of(live.stack).tolist()}
    assert told == {"train.py:3"}
    assert [segment.label for segment in (first, second)] == ["cuda:0", "cuda:1"]
    assert (len(snapshot.history) > 0) == (layout != "segments")
    assert snapshot.notes.n_inconsistent_segments == 0


def test_without_completions_requested_frees_are_used() -> None:
    b = SnapshotBuilder()
    b.free(b.alloc(12 * MIB))
    b.alloc(12 * MIB)
    whole = b.to_dict()
    whole["device_traces"][0] = [
        entry for entry in whole["device_traces"][0] if entry["action"] != "free_completed"
    ]
    (memory,) = Context(snapshot=convert_snapshot(whole, 10_000)).device_memories
    assert memory.replay.active_bytes.tolist() == [0, 0, 12 * MIB, 0, 12 * MIB]
