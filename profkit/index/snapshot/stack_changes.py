"""Two snapshots compared: what stands in one, in the other, or in both, by the stack that made it.

Stacks are the same where their Python frames are: file, line and function. Addresses say nothing,
and compiled frames differ from build to build. Where a program was edited in between, lines move:
what is left over is the same where its frames have the same files and functions and as many such
stacks are left on both sides.
"""

import posixpath
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

import numpy as np

from profkit.index.pairing import match_items
from profkit.index.snapshot.stack_lines import is_python, stack_lines
from profkit.model.location import Frame, Location
from profkit.model.snapshot import NO_STACK, MemorySnapshot, Stacks, State


@dataclass(frozen=True)
class LiveStack:
    """Active blocks of one device that one stack allocated.

    Attributes:
        device: Ordinal of the device.
        frames: Its Python frames, innermost first; none where no stack was kept.
        location: The line of it to look at.
        n: Blocks.
        n_bytes: Their lengths together.
    """

    device: int
    frames: tuple[Frame, ...]
    location: Location
    n: int
    n_bytes: int


@dataclass(frozen=True)
class StackChange:
    """What one stack holds on both sides; None where it holds nothing."""

    before: LiveStack | None
    after: LiveStack | None

    @property
    def present(self) -> LiveStack:
        """The stack, as it is after where it still holds something."""
        stack = self.after or self.before
        if stack is None:
            raise ValueError("a change has at least one side")
        return stack

    @property
    def delta_bytes(self) -> int:
        """What it holds more than before."""
        return (self.after.n_bytes if self.after else 0) - (
            self.before.n_bytes if self.before else 0
        )


def stack_changes(before: MemorySnapshot, after: MemorySnapshot) -> tuple[StackChange, ...]:
    """What changed in number or bytes, the largest change first.

    Snapshots of one device each, as of two ranks, are compared whatever the device's number.

    Args:
        before: The first snapshot.
        after: The second one.
    """
    news = live_stacks(after)
    olds = _on_devices_of(news, live_stacks(before))
    pairs, went, appeared = match_items(olds, news, (_exact,), _lines_apart)
    for key in (_moved, _elsewhere):
        same_count = _where_as_many(went, appeared, key)
        more, went, appeared = match_items(went, appeared, (same_count,), _lines_apart)
        pairs += more
    changes = [StackChange(old, new) for old, new in pairs]
    changes += [StackChange(old, None) for old in went]
    changes += [StackChange(None, new) for new in appeared]
    changes = [each for each in changes if _differs(each)]
    return tuple(sorted(changes, key=_rank))


def live_stacks(snapshot: MemorySnapshot) -> list[LiveStack]:
    """What stands in the end, by device and Python stack."""
    blocks = snapshot.blocks
    is_active = (blocks.state == State.ALLOCATED) | (blocks.state == State.PENDING_FREE)
    device = snapshot.segments.device[blocks.segment[is_active]].astype(np.int64)
    stack, n_bytes = blocks.stack[is_active], blocks.n_bytes[is_active]
    pairs, group = np.unique(np.stack((device, stack)), axis=1, return_inverse=True)
    sums = np.zeros(pairs.shape[1], dtype=np.int64)
    np.add.at(sums, group.ravel(), n_bytes)
    counts = np.bincount(group.ravel(), minlength=pairs.shape[1])
    lines = stack_lines(snapshot.stacks)
    telling = lines.of(pairs[1].astype(np.int32))
    is_pythons = [is_python(frame) for frame in snapshot.stacks.frames]
    found: dict[tuple[int, tuple[Frame, ...]], LiveStack] = {}
    for (ordinal, number), line, total, n in zip(
        pairs.T.tolist(), telling.tolist(), sums.tolist(), counts.tolist(), strict=True
    ):
        frames = _python_frames(snapshot.stacks, number, is_pythons)
        seen = found.get((ordinal, frames))
        found[ordinal, frames] = LiveStack(
            device=ordinal,
            frames=frames,
            location=lines.location(line) if frames else Location(),
            n=n + (seen.n if seen else 0),
            n_bytes=total + (seen.n_bytes if seen else 0),
        )
    return list(found.values())


def _python_frames(stacks: Stacks, number: int, is_pythons: list[bool]) -> tuple[Frame, ...]:
    if number == NO_STACK:
        return ()
    own = stacks.frame[stacks.start[number] : stacks.start[number + 1]].tolist()
    return tuple(stacks.frames[each] for each in own if is_pythons[each])


def _on_devices_of(news: list[LiveStack], olds: list[LiveStack]) -> list[LiveStack]:
    """Stacks before, told apart by device only where there are several on one side."""
    devices = {each.device for each in news}
    if len(devices) != 1 or len({each.device for each in olds}) != 1:
        return olds
    (device,) = devices
    return [replace(each, device=device) for each in olds]


def _exact(stack: LiveStack) -> Hashable:
    return stack.device, tuple((each.file, each.line, each.function) for each in stack.frames)


def _moved(stack: LiveStack) -> Hashable:
    return stack.device, tuple((each.file, each.function) for each in stack.frames)


def _elsewhere(stack: LiveStack) -> Hashable:
    """The same program in another folder, or with torch installed elsewhere."""
    return stack.device, tuple(
        (posixpath.basename(each.file.replace("\\", "/")), each.function) for each in stack.frames
    )


def _where_as_many(
    ones: list[LiveStack], others: list[LiveStack], key: Callable[[LiveStack], Hashable]
) -> Callable[[LiveStack], Hashable | None]:
    """A key that tells only of what is there as often on both sides."""
    left, right = Counter(map(key, ones)), Counter(map(key, others))

    def sure(stack: LiveStack) -> Hashable | None:
        name = key(stack)
        return name if stack.frames and left[name] == right[name] else None

    return sure


def _lines_apart(one: LiveStack, other: LiveStack) -> int:
    pairs = zip(one.frames, other.frames, strict=False)
    return sum(abs(left.line - right.line) for left, right in pairs)


def _differs(change: StackChange) -> bool:
    before, after = change.before, change.after
    if before is None or after is None:
        return True
    return (before.n, before.n_bytes) != (after.n, after.n_bytes)


def _rank(change: StackChange) -> tuple[int, int, str, int]:
    stack = change.present
    where = stack.location
    return -abs(change.delta_bytes), stack.device, where.file or "", where.line or 0
