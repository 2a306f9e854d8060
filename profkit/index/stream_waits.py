"""What was freed and still waited for another stream.

A block that ``record_stream`` has given to another stream is complete only when that stream has
reached the free. Until then it is nobody's tensor, and active all the same: no leak.
"""

import numpy as np

from profkit.index.replay import DeviceReplay, paired
from profkit.model.events import NO_ROW
from profkit.model.snapshot import Action, MemorySnapshot, State


def most_waiting_bytes(snapshot: MemorySnapshot, replay: DeviceReplay) -> int:
    """The most that waited at once, from the first entry of the history to its end.

    A free that the allocator completes by itself is complete in the next entry: that is no wait.
    Where completions were not kept, only what waits in the end is known.

    Args:
        snapshot: The snapshot.
        replay: The history of one device.
    """
    rows, history, blocks = replay.rows, snapshot.history, snapshot.blocks
    waiting = replay.block[blocks.state[replay.block] == State.PENDING_FREE]
    in_the_end = int(blocks.n_bytes[waiting].sum())
    action, address = history.action[rows], history.address[rows]
    if not all((action == each).any() for each in (Action.FREE_REQUESTED, Action.FREE_COMPLETED)):
        return in_the_end
    pairs = paired(address, action, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
    done = pairs.end > pairs.begin + 1
    still = (pairs.end == NO_ROW) & np.isin(address[pairs.begin], blocks.address[waiting])
    # A completion that comes first of all may be half of a pair that the ring has cut.
    cut = pairs.earlier_ends[pairs.earlier_ends > 0]
    n_bytes = history.n_bytes[rows]
    change = np.zeros(replay.end + 1, dtype=np.int64)
    change[pairs.begin[done | still] + 1] += n_bytes[pairs.begin[done | still]]
    change[0] = n_bytes[cut].sum()
    change[pairs.end[done] + 1] -= n_bytes[pairs.end[done]]
    change[cut + 1] -= n_bytes[cut]
    return max(int(np.cumsum(change).max()), in_the_end)
