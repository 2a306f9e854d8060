"""What was freed and still waited for another stream.

A block that ``record_stream`` has given to another stream is complete only when that stream has
reached the free. Until then it is nobody's tensor, and active all the same: no leak.
"""

import numpy as np

from profkit.index.snapshot.replay import DeviceReplay, paired
from profkit.model.events import NO_ROW
from profkit.model.snapshot import Action, MemorySnapshot, State


def peak_pending_free_bytes(snapshot: MemorySnapshot, replay: DeviceReplay) -> int:
    """The most that waited at once, from the first entry of the history to its end.

    A free that the allocator completes by itself is complete in the next entry: that is no wait.
    Where completions were not kept, only what waits in the end is known.

    Args:
        replay: The history of one device.
    """
    rows, history, blocks = replay.rows, snapshot.history, snapshot.blocks
    waiting = replay.block[blocks.state[replay.block] == State.PENDING_FREE]
    in_the_end = int(blocks.n_bytes[waiting].sum())
    action, address = history.action[rows], history.address[rows]
    begins, ends = action == Action.FREE_REQUESTED, action == Action.FREE_COMPLETED
    if not (begins.any() and ends.any()):
        return in_the_end
    # Nearly all are complete at once, and what is left is soon paired.
    at_once = begins[:-1] & ends[1:] & (address[:-1] == address[1:])
    left = begins | ends
    left[:-1] &= ~at_once
    left[1:] &= ~at_once
    places = np.flatnonzero(left)
    pairs = paired(address[places], action[places], Action.FREE_REQUESTED, Action.FREE_COMPLETED)
    begin, is_done = places[pairs.begin], pairs.end != NO_ROW
    still = ~is_done & np.isin(address[begin], blocks.address[waiting])
    end = places[pairs.end[is_done]]
    # A completion that comes first of all may be half of a pair that the ring has cut.
    cut = places[pairs.earlier_ends]
    cut = cut[cut > 0]
    n_bytes = history.n_bytes[rows]
    change = np.zeros(replay.end + 1, dtype=np.int64)
    change[begin[is_done | still] + 1] += n_bytes[begin[is_done | still]]
    change[0] = n_bytes[cut].sum()
    change[end + 1] -= n_bytes[end]
    change[cut + 1] -= n_bytes[cut]
    return max(int(np.cumsum(change).max()), in_the_end)
