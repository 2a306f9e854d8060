"""Named regions of a snapshot: the most that was active in each, and what each left."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from profkit.index.replay import DeviceReplay
from profkit.model.events import MISSING, Int64s
from profkit.model.snapshot import Annotation, MemorySnapshot

MAX_ENTRIES: Final = 100_000
"""So many regions are looked at; a region each operator makes more, and no table of them helps."""


@dataclass(frozen=True)
class MarkedRegion:
    """All entries of one region on one device.

    Attributes:
        name: Its name.
        n: Entries.
        peak_active_bytes: The most that was active in any of them.
        left_bytes: What they left active, all together; negative where they freed more.
    """

    name: str
    n: int
    peak_active_bytes: int
    left_bytes: int


def marked_regions(snapshot: MemorySnapshot, replay: DeviceReplay) -> tuple[MarkedRegion, ...]:
    """Regions by the most that was active in them, then name.

    A region that does not end within the snapshot goes on to its end; one that began before the
    first entry of the history is left out, since what was active in it is not known.

    Args:
        snapshot: The snapshot.
        replay: The history of one device.
    """
    times = snapshot.history.time_us[replay.rows]
    if not len(times) or int(times.min()) == MISSING or (np.diff(times) < 0).any():
        return ()
    notes = [note for note in snapshot.annotations if note.device == replay.device]
    entries = list(_entries(notes[:MAX_ENTRIES], times))
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
    np.maximum.at(peak, of_name, _highest(levels, start, end))
    np.add.at(left, of_name, levels[end] - levels[start])
    n = np.bincount(of_name)
    found = (
        MarkedRegion(name, int(n[i]), int(peak[i]), int(left[i])) for i, name in enumerate(names)
    )
    return tuple(sorted(found, key=lambda each: (-each.peak_active_bytes, each.name)))


def _entries(notes: list[Annotation], times: Int64s) -> Iterator[tuple[str, int, int]]:
    """Name, begin and end of every entry. Regions nest: an end is that of the latest begin."""
    first, last = int(times[0]), int(times[-1])
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


def _highest(levels: Int64s, start: Int64s, end: Int64s) -> Int64s:
    """The highest level from each start to each end, both included. Shape of ``start``."""
    pairs = np.stack((start, end + 1), axis=1).reshape(-1)
    # A last level beyond all ends keeps every index in range; it is in no stretch.
    padded = np.append(levels, np.iinfo(np.int64).min)
    return np.asarray(np.maximum.reduceat(padded, pairs)[::2])
