"""Comparison of two snapshots: live blocks by allocation stack.

Stacks match where their Python frames do: file, line and function. Addresses are meaningless, and
compiled frames differ between builds. If the program was edited in between, lines move. Then the
remaining stacks match if files and functions are equal and equally many are left on both sides.
"""

import posixpath
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import replace

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.pairing import match_items
from profkit.index.snapshot.stack_lines import find_stack_lines, is_python
from profkit.index.sums import sum_by_key
from profkit.model.location import Frame, Location
from profkit.model.snapshot import NO_STACK, MemorySnapshot, Stacks


@dataclass(frozen=True)
class LiveStack:
    """Active blocks of one device with the same allocation stack.

    Attributes:
        frames: Python frames, innermost first; empty without a recorded stack.
    """

    device: int
    frames: tuple[Frame, ...]
    location: Location
    n: int
    n_bytes: int


@dataclass(frozen=True)
class StackChange:
    """One allocation stack in both snapshots; None where it has no blocks."""

    before: LiveStack | None
    after: LiveStack | None

    @property
    def present(self) -> LiveStack:
        """Return the stack after, or else before."""
        stack = self.after or self.before
        if stack is None:
            raise ValueError("a change has at least one side")
        return stack

    @property
    def delta_bytes(self) -> int:
        """Return the bytes after minus bytes before."""
        return (self.after.n_bytes if self.after else 0) - (
            self.before.n_bytes if self.before else 0
        )


def find_stack_changes(before: MemorySnapshot, after: MemorySnapshot) -> tuple[StackChange, ...]:
    """Find the stacks whose number of blocks or bytes changed, largest change first.

    Snapshots of one device each, such as of two ranks, are compared regardless of its ordinal.
    """
    new_stacks = find_live_stacks(after)
    old_stacks = _align_device(new_stacks, find_live_stacks(before))
    pairs, fixed, added = match_items(old_stacks, new_stacks, (_exact,), _lines_apart)

    # First stacks whose lines moved, then the same program or torch in another folder.
    for key in (_moved, _elsewhere):
        same_count = _if_equally_many(fixed, added, key)
        more, fixed, added = match_items(fixed, added, (same_count,), _lines_apart)
        pairs += more

    changes = [StackChange(old, new) for old, new in pairs]
    changes += [StackChange(old, None) for old in fixed]
    changes += [StackChange(None, new) for new in added]
    changes = [change for change in changes if _differs(change)]

    return tuple(sorted(changes, key=_rank))


def find_live_stacks(snapshot: MemorySnapshot) -> list[LiveStack]:
    """Find the active blocks at the end, by device and Python stack."""
    blocks = snapshot.blocks
    active = np.flatnonzero(blocks.is_active)
    device = snapshot.segments.device[blocks.segment[active]].astype(np.int64)
    stack, n_bytes = blocks.stack[active], blocks.n_bytes[active]

    pairs, group = np.unique(np.stack((device, stack)), axis=1, return_inverse=True)
    sums = sum_by_key(pairs.shape[1], group.ravel(), n_bytes)
    counts = np.bincount(group.ravel(), minlength=pairs.shape[1])

    lines = find_stack_lines(snapshot.stacks)
    source_line = lines.of(pairs[1].astype(np.int32))
    is_python_frame = [is_python(frame) for frame in snapshot.stacks.frames]

    by_stack: dict[tuple[int, tuple[Frame, ...]], LiveStack] = {}

    # Stacks that differ only in compiled frames are one.
    for (ordinal, number), line, total, n in zip(
        pairs.T.tolist(), source_line.tolist(), sums.tolist(), counts.tolist(), strict=True
    ):
        frames = _select_python_frames(snapshot.stacks, number, is_python_frame)
        earlier = by_stack.get((ordinal, frames))
        by_stack[ordinal, frames] = LiveStack(
            device=ordinal,
            frames=frames,
            location=lines.location(line) if frames else Location(),
            n=n + (earlier.n if earlier else 0),
            n_bytes=total + (earlier.n_bytes if earlier else 0),
        )
    return list(by_stack.values())


def _select_python_frames(
    stacks: Stacks, number: int, is_python_frame: list[bool]
) -> tuple[Frame, ...]:
    if number == NO_STACK:
        return ()
    numbers = stacks.frame[stacks.start[number] : stacks.start[number + 1]].tolist()
    return tuple(stacks.frames[frame] for frame in numbers if is_python_frame[frame])


def _align_device(new_stacks: list[LiveStack], old_stacks: list[LiveStack]) -> list[LiveStack]:
    """Give old stacks the new device's ordinal if both sides have one device."""
    devices = {stack.device for stack in new_stacks}
    if len(devices) != 1 or len({stack.device for stack in old_stacks}) != 1:
        return old_stacks
    (device,) = devices
    return [replace(stack, device=device) for stack in old_stacks]


def _exact(stack: LiveStack) -> Hashable:
    return stack.device, tuple((frame.file, frame.line, frame.function) for frame in stack.frames)


def _moved(stack: LiveStack) -> Hashable:
    return stack.device, tuple((frame.file, frame.function) for frame in stack.frames)


def _elsewhere(stack: LiveStack) -> Hashable:
    """Return a key of the program in any folder, with torch installed anywhere."""
    return stack.device, tuple(
        (posixpath.basename(frame.file.replace("\\", "/")), frame.function)
        for frame in stack.frames
    )


def _if_equally_many(
    before: list[LiveStack], after: list[LiveStack], key: Callable[[LiveStack], Hashable]
) -> Callable[[LiveStack], Hashable | None]:
    """Return a key that only matches items that are equally frequent on both sides."""
    left, right = Counter(map(key, before)), Counter(map(key, after))

    def key_if_equal(stack: LiveStack) -> Hashable | None:
        name = key(stack)
        return name if stack.frames and left[name] == right[name] else None

    return key_if_equal


def _lines_apart(before: LiveStack, after: LiveStack) -> int:
    pairs = zip(before.frames, after.frames, strict=False)
    return sum(abs((left.line or 0) - (right.line or 0)) for left, right in pairs)


def _differs(change: StackChange) -> bool:
    before, after = change.before, change.after
    if before is None or after is None:
        return True
    return (before.n, before.n_bytes) != (after.n, after.n_bytes)


def _rank(change: StackChange) -> tuple[int, int, str, int]:
    stack = change.present
    where = stack.location
    return -abs(change.delta_bytes), stack.device, where.file or "", where.line or 0
