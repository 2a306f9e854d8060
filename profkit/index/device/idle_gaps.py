"""Idle time told apart by how long the device stood still."""

from profkit.index.device.idle import IdleByCause
from profkit.index.device.streams import DeviceActivity
from profkit.index.intervals import Intervals, intersect, unite


def short_waits(device: DeviceActivity, causes: IdleByCause, max_gap_ns: int) -> Intervals:
    """Idle time for want of a launch, in the gaps that are no longer than some length.

    Args:
        causes: Why it was idle: only ``host`` and ``launch`` count.
        max_gap_ns: The longest gap that counts, in nanoseconds.
    """
    gaps = device.idle
    short = gaps.ends_ns - gaps.starts_ns <= max_gap_ns
    kept = Intervals(gaps.starts_ns[short], gaps.ends_ns[short])
    return intersect(unite(causes.host, causes.launch), kept)
