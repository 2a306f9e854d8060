"""Named regions of a snapshot: the most that was active in each, and what each left."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from profkit.index.snapshot.replay import DeviceReplay
from profkit.model.events import MISSING, NO_ROW, Int64s
from profkit.model.snapshot import NO_STACK, Annotation, MemorySnapshot

MAX_ENTRIES: Final = 20_000
"""So many begins and ends are looked at; regions of every operator make more, and no table of
those helps."""
_CHUNK: Final = 4096


@dataclass(frozen=True)
class AnnotatedRegion:
    """All entries of one region on one device.

    Attributes:
        name: Its name.
        n: Entries.
        peak_active_bytes: The most that was active in any of them.
        net_active_bytes: What they left active, all together; negative where they freed more.
    """

    name: str
    n: int
    peak_active_bytes: int
    net_active_bytes: int


def annotated_regions(
    snapshot: MemorySnapshot, replay: DeviceReplay
) -> tuple[AnnotatedRegion, ...]:
    """Regions by the most that was active in them, then name.

    A region that does not end within the snapshot goes on to its end. One that began before the
    first entry of the history is left out where entries may be lost, since what was active in it
    is not known then; the first region of a whole history always begins before its first entry.

    Args:
        replay: The history of one device.
    """
    times = monotonic_times(snapshot, replay)
    if not len(times):
        return ()
    notes = [note for note in snapshot.annotations if note.device == replay.device]
    entries = list(_entries(notes[:MAX_ENTRIES], times, is_whole=is_whole(snapshot, replay)))
    if not entries:
        return ()
    names = sorted({name for name, _, _ in entries})
    number = {name: place for place, name in enumerate(names)}
    of_name = np.array([number[name] for name, _, _ in entries], dtype=np.intp)
    start = np.searchsorted(times, [begin for _, begin, _ in entries], side="left")
    end = np.searchsorted(times, [end for _, _, end in entries], side="right")
    peak = np.zeros(len(names), dtype=np.int64)
    left = np.zeros(len(names), dtype=np.int64)
    levels = replay.active_bytes
    np.maximum.at(peak, of_name, range_maximum(levels, start, end))
    np.add.at(left, of_name, levels[end] - levels[start])
    n = np.bincount(of_name)
    found = (
        AnnotatedRegion(name, int(n[i]), int(peak[i]), int(left[i])) for i, name in enumerate(names)
    )
    return tuple(sorted(found, key=lambda each: (-each.peak_active_bytes, each.name)))


def monotonic_times(snapshot: MemorySnapshot, replay: DeviceReplay) -> Int64s:
    """The times of a device's history in microseconds since 1970, if they can be searched.

    Args:
        replay: The history of one device.

    Returns:
        A time for each entry; none at all where one lacks it, or the clock went back.
    """
    times = snapshot.history.time_us[replay.rows]
    if len(times) and (int(times.min()) == MISSING or (np.diff(times) < 0).any()):
        return times[:0]
    return times


def is_whole(snapshot: MemorySnapshot, replay: DeviceReplay) -> bool:
    """Whether nothing shows that the history has lost its beginning.

    A block with a stack was allocated while history was recorded: without an entry, that is lost.
    Where no stacks are kept at all, any block without an entry may be such a one.

    Args:
        replay: The history of one device.
    """
    earlier = snapshot.blocks.stack[replay.block[replay.since == NO_ROW]]
    are_kept = bool((snapshot.history.stack[replay.rows] != NO_STACK).any())
    is_lost = bool((earlier != NO_STACK).any()) if are_kept else len(earlier) > 0
    return not is_lost and not len(replay.earlier_frees)


def _entries(
    notes: list[Annotation], times: Int64s, *, is_whole: bool
) -> Iterator[tuple[str, int, int]]:
    """Name, begin and end of every entry. Regions nest: an end is that of the latest begin."""
    first, last = int(times[0]), int(times[-1])
    if is_whole:
        first = min((note.time_us for note in notes), default=first)
    open_by_name: dict[str, list[int]] = {}
    for note in notes:
        if note.is_start:
            open_by_name.setdefault(note.name, []).append(note.time_us)
        elif open_by_name.get(note.name):
            begin = open_by_name[note.name].pop()
            if begin >= first:
                yield note.name, begin, max(begin, note.time_us)
    for name, begins in open_by_name.items():
        for begin in begins:
            if first <= begin <= last:
                yield name, begin, last


def range_maximum(levels: Int64s, start: Int64s, end: Int64s) -> Int64s:
    """The range_maximum level from each start to each end, both included. Shape of ``start``.

    Regions may be long and nested, so what lies wholly within one is looked up by chunks.

    Args:
        levels: Shape ``(n,)``.
        start: Indices into the levels.
        end: Indices at or after them.
    """
    first, last = start // _CHUNK + 1, end // _CHUNK
    head_end = np.minimum(first * _CHUNK, end + 1)
    tail_start = np.maximum(last * _CHUNK, start)
    found = np.maximum(_over(levels, start, head_end), _over(levels, tail_start, end + 1))
    whole = np.maximum.reduceat(levels, np.arange(0, len(levels), _CHUNK))
    n = last - first
    power = 0
    # ``whole`` holds the range_maximum level of as many chunks from each on as the power of two says.
    while (n >= 1 << power).any():
        here = (n >> power == 1).nonzero()[0]
        begin, stop = first[here], last[here] - (1 << power)
        found[here] = np.maximum(found[here], np.maximum(whole[begin], whole[stop]))
        step = 1 << power
        whole = np.maximum(whole[:-step], whole[step:]) if step < len(whole) else whole
        power += 1
    return found


def _over(levels: Int64s, start: Int64s, stop: Int64s) -> Int64s:
    """The range_maximum level from each start up to each stop, which is beyond it. Shape of ``start``."""
    # A last level beyond all stops keeps every index in range; it is in no stretch.
    padded = np.append(levels, np.iinfo(np.int64).min)
    pairs = np.stack((start, stop), axis=1).reshape(-1)
    return np.asarray(np.maximum.reduceat(padded, pairs)[::2])


def peaks_between(snapshot: MemorySnapshot, replay: DeviceReplay, bounds_us: Int64s) -> Int64s:
    """The most bytes that were active between each moment and the next.

    Args:
        replay: The history of one device.
        bounds_us: Moments on the clock of the history, rising. Shape ``(k,)``.

    Returns:
        Bytes, or :data:`MISSING` where the history does not reach back so far or has no times.
        Shape ``(k - 1,)``.
    """
    times = monotonic_times(snapshot, replay)
    begins, ends = bounds_us[:-1], bounds_us[1:]
    if not len(times):
        return np.full(len(begins), MISSING, dtype=np.int64)
    start = np.searchsorted(times, begins, side="right")
    end = np.searchsorted(times, ends, side="right")
    found = range_maximum(replay.active_bytes, start, end)
    is_known = (begins >= times[0]) | is_whole(snapshot, replay)
    return np.where(is_known, found, MISSING).astype(np.int64)
