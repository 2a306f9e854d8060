"""By how much a peak would be lower without what one line holds."""

import numpy as np

from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.model.events import NO_ROW, Int64s


def levels_of_line(memory: DeviceMemory, line: int) -> Int64s:
    """What one line allocated within the history, before each of its rows and in the end.

    Args:
        memory: The device.
        line: The line, as in :class:`~profkit.index.snapshot.live_blocks.LiveBlockSites`.

    Returns:
        Bytes. Shape ``(n+1,)``.
    """
    snapshot, replay = memory.snapshot, memory.replay
    rows = replay.rows[replay.alloc]
    own = memory.lines.of(snapshot.history.stack[rows]) == line
    change = np.zeros(replay.end + 1, dtype=np.int64)
    np.add.at(change, replay.alloc[own] + 1, replay.n_bytes[replay.alloc[own]])
    ended = own & (replay.free != NO_ROW)
    np.subtract.at(change, replay.free[ended] + 1, replay.n_bytes[replay.alloc[ended]])
    return np.cumsum(change)


def peak_without(memory: DeviceMemory, line: int) -> int:
    """The most that would be active at once without what one line allocates, in bytes.

    Args:
        memory: The device.
    """
    return int((memory.replay.active_bytes - levels_of_line(memory, line)).max())
