"""Memory of private pools, such as those of CUDA graphs.

A graph's pool is nobody else's, and what is free in it at a moment is what the graph writes to when
it is replayed. So it is neither a cache that could be emptied nor memory in pieces.

Source: "Graph memory management" in PyTorch's CUDA semantics.
"""

import numpy as np

from profkit.index.snapshot.replay import DeviceReplay, levels
from profkit.model.events import NO_ROW, Int32s, Int64s, Mask
from profkit.model.snapshot import Action, MemorySnapshot, State

_TAKES = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_GIVES = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


def private_pools(snapshot: MemorySnapshot, device: int, address: Int64s) -> Int32s:
    """The private pool of each address whose segment still stands. Shape of ``address``.

    Args:
        device: Ordinal of the device.
        address: The addresses.

    Returns:
        Indices into :attr:`MemorySnapshot.pools`; 0 is the common one, and that of what stands no
        more.
    """
    segments = snapshot.segments
    own = np.flatnonzero((segments.device == device) & (segments.pool != 0))
    if not len(own):
        return np.zeros(len(address), dtype=np.int32)
    own = own[np.argsort(segments.address[own], kind="stable")]
    holder = own[np.maximum(np.searchsorted(segments.address[own], address, side="right") - 1, 0)]
    begin = segments.address[holder]
    inside = (begin <= address) & (address < begin + segments.total_bytes[holder])
    return np.where(inside, segments.pool[holder], 0).astype(np.int32)


def is_private(snapshot: MemorySnapshot, device: int, address: Int64s) -> Mask:
    """Which addresses lie in a segment of a private pool that still stands. Shape of ``address``.

    Args:
        device: Ordinal of the device.
        address: The addresses.
    """
    return np.asarray(private_pools(snapshot, device, address) != 0)


def common_levels(snapshot: MemorySnapshot, replay: DeviceReplay) -> tuple[Int64s, Int64s]:
    """What was active and what was reserved outside private pools, as in :class:`DeviceReplay`.

    Args:
        replay: The history of one device.
    """
    segments, blocks = snapshot.segments, snapshot.blocks
    own = (segments.device == replay.device) & (segments.pool != 0)
    if not own.any():
        return replay.active_bytes, replay.reserved_bytes
    rows = replay.rows
    action, n_bytes = snapshot.history.action[rows], replay.n_bytes
    private = is_private(snapshot, replay.device, snapshot.history.address[rows])
    ends = np.zeros(len(rows), dtype=np.bool_)
    ends[replay.free[replay.free != NO_ROW]] = True
    ends[replay.earlier_frees] = True
    is_active = (blocks.state == State.ALLOCATED) | (blocks.state == State.PENDING_FREE)
    active = levels(
        int(blocks.n_bytes[is_active & own[blocks.segment]].sum()),
        n_bytes,
        private & (action == Action.ALLOC),
        private & ends,
    )
    reserved = levels(
        int(segments.total_bytes[own].sum()),
        n_bytes,
        private & np.isin(action, _TAKES),
        private & np.isin(action, _GIVES),
    )
    return replay.active_bytes - active, replay.reserved_bytes - reserved
