"""Two snapshots compared by stack, against a count of the blocks by hand."""

import gzip
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import profkit
from profkit.index.snapshot.stack_changes import StackChange, find_live_stacks, find_stack_changes
from profkit.model.snapshot import MemorySnapshot
from tests.corpus.recordings import SNAPSHOTS, needs_corpus
from tests.index.snapshots import Block, Site, snapshot

FILES = sorted(SNAPSHOTS.glob("*"))[::4]

LOSS: Site = ("/home/me/train.py", 12, "step")
MAIN: Site = ("/home/me/train.py", 30, "<module>")
TORCH: Site = ("/env/lib/python3.11/site-packages/torch/nn/functional.py", 7, "relu")
KIB = 1024


def changes(before: list[Block], after: list[Block]) -> tuple[StackChange, ...]:
    return find_stack_changes(snapshot(before), snapshot(after))


def brief(found: tuple[StackChange, ...]) -> list[tuple[int, int | None, int | None]]:
    """Of each change the bytes, and the line before and after."""
    return [
        (
            change.delta_bytes,
            change.before.location.line if change.before else None,
            change.after.location.line if change.after else None,
        )
        for change in found
    ]


def test_changes_are_in_bytes_and_largest_first() -> None:
    log, third = ("/home/me/train.py", 50, "log"), ("/home/me/train.py", 70, "save")
    stack_changes = changes(
        [([LOSS, MAIN], 4 * KIB), ([log, MAIN], 64 * KIB)],
        [([LOSS, MAIN], 4 * KIB), ([LOSS, MAIN], 8 * KIB), ([third, MAIN], 2 * KIB)],
    )
    assert brief(stack_changes) == [(-64 * KIB, 50, None), (8 * KIB, 12, 12), (2 * KIB, None, 70)]
    grown = stack_changes[1]
    assert grown.before is not None
    assert grown.after is not None
    assert (grown.before.n, grown.after.n) == (1, 2)


def test_equal_live_blocks_are_not_a_change() -> None:
    blocks: list[Block] = [([TORCH, LOSS, MAIN], KIB), ([MAIN], 3 * KIB), ([], 9 * KIB)]
    assert changes(blocks, list(reversed(blocks))) == ()


def test_a_change_has_the_user_line_and_the_full_stack() -> None:
    (change,) = changes([], [([TORCH, LOSS, MAIN], KIB)])
    assert change.after is not None
    assert (change.after.location.file, change.after.location.line) == LOSS[:2]
    assert [frame.function for frame in change.after.frames] == ["relu", "step", "<module>"]


def test_compiled_frames_do_not_distinguish_stacks() -> None:
    before: list[Block] = [([("/build/a.cpp", 3, "alloc"), LOSS, MAIN], KIB)]
    after: list[Block] = [([("??", 0, "??"), ("x.cu", 9, "alloc"), LOSS, MAIN], KIB)]
    assert changes(before, after) == ()


def test_a_moved_line_matches() -> None:
    moved: Site = (LOSS[0], LOSS[1] + 2, LOSS[2])
    stack_changes = changes([([LOSS, MAIN], KIB)], [([moved, MAIN], 3 * KIB)])
    assert brief(stack_changes) == [(2 * KIB, 12, 14)]


def test_the_same_program_in_another_folder_matches() -> None:
    moved = [
        (file.replace("/home/me", "/srv/job"), line, name) for file, line, name in (LOSS, MAIN)
    ]
    assert changes([([LOSS, MAIN], KIB)], [(moved, KIB)]) == ()


def test_ambiguous_lines_are_not_matched() -> None:
    first, second, third = ((LOSS[0], line, "step") for line in (12, 14, 18))
    stack_changes = changes([([first], KIB), ([second], 2 * KIB)], [([third], 4 * KIB)])
    assert sorted(brief(stack_changes)) == [
        (-2 * KIB, 14, None),
        (-KIB, 12, None),
        (4 * KIB, None, 18),
    ]


def test_the_nearest_of_several_moved_lines_match() -> None:
    before: list[Block] = [([(LOSS[0], 12, "step")], KIB), ([(LOSS[0], 40, "step")], 2 * KIB)]
    after: list[Block] = [([(LOSS[0], 41, "step")], 2 * KIB), ([(LOSS[0], 13, "step")], 5 * KIB)]
    assert brief(changes(before, after)) == [(4 * KIB, 12, 13)]


def test_blocks_without_a_stack_are_one_group() -> None:
    (change,) = changes([([], KIB)], [([], KIB), ([], 2 * KIB)])
    assert change.delta_bytes == 2 * KIB
    assert change.present.frames == ()


def test_two_ranks_are_compared_regardless_of_device() -> None:
    rank0 = snapshot([([LOSS], KIB)], device=0)
    rank1 = snapshot([([LOSS], 3 * KIB)], device=1)
    (change,) = find_stack_changes(rank0, rank1)
    assert (change.delta_bytes, change.present.device) == (2 * KIB, 1)


sites = st.sampled_from([("a.py", 1, "f"), ("a.py", 2, "f"), ("b.py", 1, "g"), ("x.cpp", 1, "h")])
blocks = st.lists(
    st.tuples(st.lists(sites, max_size=3), st.integers(1, 1 << 40)), min_size=1, max_size=12
)


def by_stack(listed: list[Block]) -> Counter[tuple[Site, ...]]:
    bytes_by_stack: Counter[tuple[Site, ...]] = Counter()
    for frames, n_bytes in listed:
        bytes_by_stack[tuple(frame for frame in frames if frame[0].endswith(".py"))] += n_bytes
    return bytes_by_stack


@given(before=blocks, after=blocks)
def test_changes_add_up_and_exclude_unchanged_stacks(
    before: list[Block], after: list[Block]
) -> None:
    old, new = by_stack(before), by_stack(after)
    stack_changes = changes(before, after)
    assert sum(change.delta_bytes for change in stack_changes) == new.total() - old.total()
    # A stack that is there on both sides is compared with itself, whatever else there is.
    same = {
        tuple((f.file, f.line, f.function) for f in change.after.frames): change.delta_bytes
        for change in stack_changes
        if change.before is not None
        and change.after is not None
        and change.before.frames == change.after.frames
    }
    for frames in old.keys() & new.keys():
        assert same.get(frames, 0) == new[frames] - old[frames]


def sum_active_by_hand(path: Path) -> Counter[tuple[int, tuple[Site, ...]]]:
    """Active bytes by device and Python frames, from torch's own lists and dictionaries."""
    data: Any = pickle.loads(gzip.decompress(path.read_bytes()))  # noqa: S301  (of the corpus)
    bytes_by_stack: Counter[tuple[int, tuple[Site, ...]]] = Counter()

    for segment in data if isinstance(data, list) else data["segments"]:
        for block in segment["blocks"]:
            if not block["state"].startswith("active"):
                continue
            history = block.get("history") or [{}]
            frames = block.get("frames") or history[0].get("frames") or []
            python = tuple(
                (frame["filename"], frame["line"], frame["name"])
                for frame in frames
                if frame["filename"].endswith(".py") or frame["filename"].startswith("<")
            )
            bytes_by_stack[segment["device"], python] += block["size"]

    return bytes_by_stack


@needs_corpus
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_active_byte_of_a_real_snapshot_has_a_stack(path: Path) -> None:
    read = profkit.load(path)
    assert isinstance(read, MemorySnapshot)
    bytes_of = {
        (
            live_stack.device,
            tuple((f.file, f.line, f.function) for f in live_stack.frames),
        ): live_stack.n_bytes
        for live_stack in find_live_stacks(read)
    }
    assert bytes_of == dict(sum_active_by_hand(path))
    assert find_stack_changes(read, read) == ()
