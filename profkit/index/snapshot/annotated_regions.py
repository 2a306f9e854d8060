"""Named regions of a snapshot and steps of a monitored program: their peaks of active bytes."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.index.snapshot.replay import DeviceReplay
from profkit.model.events import MISSING, NO_ROW, Int64s
from profkit.model.memory_summary import RegionMemory
from profkit.model.snapshot import NO_STACK, Annotation, MemorySnapshot

MAX_ENTRIES: Final = 20_000
"""Begins and ends that are evaluated; more come from a region around every operator, whose table
would be useless."""
_CHUNK: Final = 4096


def find_annotated_regions(
    snapshot: MemorySnapshot, replay: DeviceReplay
) -> tuple[RegionMemory, ...]:
    """Find the regions by peak of active bytes, then name.

    A region without an end extends to the end of the history. One that begins before the first
    history entry is omitted if earlier entries may be lost, since its peak is unknown; the first
    region of a complete history always begins before its first entry.
    """
    times = monotonic_times(snapshot, replay)
    if not len(times):
        return ()

    notes = [note for note in snapshot.annotations if note.device == replay.device]
    entries = list(
        _iterate_entries(notes[:MAX_ENTRIES], times, is_complete=is_complete(snapshot, replay))
    )
    if not entries:
        return ()

    names = sorted({name for name, _, _ in entries})
    number = {name: place for place, name in enumerate(names)}
    of_name = np.array([number[name] for name, _, _ in entries], dtype=np.intp)
    start = np.searchsorted(times, [begin for _, begin, _ in entries], side="left")
    end = np.searchsorted(times, [end for _, _, end in entries], side="right")

    peak = np.zeros(len(names), dtype=np.int64)
    net = np.zeros(len(names), dtype=np.int64)
    levels = replay.active_bytes
    np.maximum.at(peak, of_name, find_range_maximum(levels, start, end))
    np.add.at(net, of_name, levels[end] - levels[start])

    n_entries = np.bincount(of_name)
    regions = (
        RegionMemory(name, int(n_entries[i]), int(peak[i]), int(net[i]))
        for i, name in enumerate(names)
    )
    return tuple(sorted(regions, key=lambda region: (-region.peak_active_bytes, region.name)))


def monotonic_times(snapshot: MemorySnapshot, replay: DeviceReplay) -> Int64s:
    """Return the times of a device's history entries in microseconds since 1970.

    Empty if they are not ascending, or if an entry has no time.
    """
    times = snapshot.history.time_us[replay.rows]
    if len(times) and (int(times.min()) == MISSING or (np.diff(times) < 0).any()):
        return times[:0]
    return times


def is_complete(snapshot: MemorySnapshot, replay: DeviceReplay) -> bool:
    """Return whether the history seems to have its beginning.

    A block with a stack was allocated while history was recorded. If such a block has no entry,
    entries are lost. If no stacks were recorded, any block without an entry may be such a block.
    """
    earlier = snapshot.blocks.stack[replay.block[replay.since == NO_ROW]]
    has_stacks = bool((snapshot.history.stack[replay.rows] != NO_STACK).any())
    has_unseen = bool((earlier != NO_STACK).any()) if has_stacks else len(earlier) > 0
    return not has_unseen and not len(replay.earlier_frees)


def _iterate_entries(
    notes: list[Annotation], times: Int64s, *, is_complete: bool
) -> Iterator[tuple[str, int, int]]:
    """Iterate over name, begin and end of every entry. An end closes the latest begin."""
    first, last = int(times[0]), int(times[-1])
    if is_complete:
        first = min((note.time_us for note in notes), default=first)

    open_by_name: dict[str, list[int]] = {}
    for note in notes:
        if note.is_start:
            open_by_name.setdefault(note.name, []).append(note.time_us)
        elif open_by_name.get(note.name):
            begin = open_by_name[note.name].pop()
            if begin >= first:
                yield note.name, begin, max(begin, note.time_us)

    # Regions without an end last as long as the history.
    for name, begins in open_by_name.items():
        for begin in begins:
            if first <= begin <= last:
                yield name, begin, last


def find_range_maximum(levels: Int64s, start: Int64s, end: Int64s) -> Int64s:
    """Find the maximum of the levels from each start to each end, inclusive. Shape of ``start``.

    Starts and ends are indices. Regions may be long and nested, so a sparse table over chunks
    serves the inner part.
    """
    first, last = start // _CHUNK + 1, end // _CHUNK
    head_end = np.minimum(first * _CHUNK, end + 1)
    tail_start = np.maximum(last * _CHUNK, start)

    maximum = np.maximum(
        _find_direct_maximum(levels, start, head_end),
        _find_direct_maximum(levels, tail_start, end + 1),
    )

    whole = np.maximum.reduceat(levels, np.arange(0, len(levels), _CHUNK))
    n_chunks = last - first
    power = 0
    # ``whole`` holds the maximum of the next ``1 << power`` chunks from each chunk on.
    while (n_chunks >= 1 << power).any():
        places = (n_chunks >> power == 1).nonzero()[0]
        begin, stop = first[places], last[places] - (1 << power)
        maximum[places] = np.maximum(maximum[places], np.maximum(whole[begin], whole[stop]))
        step = 1 << power
        whole = np.maximum(whole[:-step], whole[step:]) if step < len(whole) else whole
        power += 1
    return maximum


def _find_direct_maximum(levels: Int64s, start: Int64s, stop: Int64s) -> Int64s:
    """Return the maximum from each start up to each stop, exclusive. Shape of ``start``."""
    # A last level beyond all stops keeps every index in range.
    padded = np.append(levels, np.iinfo(np.int64).min)
    pairs = np.stack((start, stop), axis=1).reshape(-1)
    return np.asarray(np.maximum.reduceat(padded, pairs)[::2])


def find_peaks_between(snapshot: MemorySnapshot, replay: DeviceReplay, bounds_us: Int64s) -> Int64s:
    """Find the peak of active bytes between each moment and the next.

    Args:
        bounds_us: Moments on the clock of the history, ascending. Shape ``(k,)``.

    Returns:
        Bytes, or :data:`MISSING` where the history does not reach back or has no times.
        Shape ``(k - 1,)``.
    """
    times = monotonic_times(snapshot, replay)
    begins, ends = bounds_us[:-1], bounds_us[1:]
    if not len(times):
        return np.full(len(begins), MISSING, dtype=np.int64)

    start = np.searchsorted(times, begins, side="right")
    end = np.searchsorted(times, ends, side="right")
    peaks = find_range_maximum(replay.active_bytes, start, end)
    is_known = (begins >= times[0]) | is_complete(snapshot, replay)
    return np.where(is_known, peaks, MISSING).astype(np.int64)
