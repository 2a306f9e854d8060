"""The most that was active on a device within each step of a program that was watched."""

import numpy as np

from profkit.index.snapshot.annotated_regions import highest, is_whole, rising_times
from profkit.index.snapshot.replay import DeviceReplay
from profkit.model.events import MISSING, Int64s
from profkit.model.snapshot import MemorySnapshot


def peaks_between(snapshot: MemorySnapshot, replay: DeviceReplay, bounds_us: Int64s) -> Int64s:
    """The most bytes that were active between each moment and the next.

    Args:
        replay: The history of one device.
        bounds_us: Moments on the clock of the history, rising. Shape ``(k,)``.

    Returns:
        Bytes, or :data:`MISSING` where the history does not reach back so far or has no times.
        Shape ``(k - 1,)``.
    """
    times = rising_times(snapshot, replay)
    begins, ends = bounds_us[:-1], bounds_us[1:]
    if not len(times):
        return np.full(len(begins), MISSING, dtype=np.int64)
    start = np.searchsorted(times, begins, side="right")
    end = np.searchsorted(times, ends, side="right")
    found = highest(replay.active_bytes, start, end)
    is_known = (begins >= times[0]) | is_whole(snapshot, replay)
    return np.where(is_known, found, MISSING).astype(np.int64)
