"""The requests of a program to its allocator, from a snapshot's history.

Allocations, frees and ``empty_cache`` are the program's actions; requests to the driver and cache
flushes are the allocator's reaction, which the simulation replaces.
"""

import numpy as np

from profkit.index.snapshot.allocator.simulate import InitialState, RequestKind, Requests
from profkit.index.snapshot.cache_flushes import FlushCause, Flushes
from profkit.index.snapshot.replay import DeviceReplay, find_private_pools, pair_by_address
from profkit.index.snapshot.segment_map import NO_SEGMENTS, build_segment_map_at
from profkit.model.events import NO_ROW, Rows
from profkit.model.snapshot import Action, MemorySnapshot


def find_recorded_requests(
    snapshot: MemorySnapshot, replay: DeviceReplay, flushes: Flushes
) -> Requests | None:
    """Find the requests of one device, or None without a known, consistent initial state."""
    begin = _build_begin(snapshot, replay)
    history, rows = snapshot.history, replay.rows
    failed = np.flatnonzero(history.action[rows] == Action.OOM)
    requested = rows[np.concatenate((replay.alloc, failed))]
    if begin is None or not len(requested) or int(history.n_bytes[requested].min()) < 0:
        return None

    n_begin, n_allocs = len(begin.block_address), len(replay.alloc)
    own_requests, ended = np.arange(n_begin, n_begin + n_allocs), replay.free != NO_ROW

    earlier = begin.requests_at(history.address[rows[replay.earlier_frees]])
    triggered_by = _find_triggers(snapshot, replay, flushes)
    pending, pending_request = _find_pending_frees(snapshot, replay, begin, triggered_by)
    empty = flushes.first[flushes.cause != FlushCause.RETRY]

    actions = (
        (RequestKind.ALLOC, replay.alloc, own_requests),
        (RequestKind.FREE, replay.free[ended], own_requests[ended]),
        (RequestKind.FREE, replay.earlier_frees[earlier != NO_ROW], earlier[earlier != NO_ROW]),
        (RequestKind.PENDING_FREE, pending, pending_request),
        (RequestKind.EMPTY, empty, np.full(len(empty), NO_ROW, dtype=np.intp)),
        (
            RequestKind.TRY,
            failed,
            np.arange(n_begin + n_allocs, n_begin + len(requested)),
        ),
    )

    kind = np.repeat([kind for kind, _, _ in actions], [len(place) for _, place, _ in actions])
    place = np.concatenate([place for _, place, _ in actions])

    # A triggered action follows the request that triggered it.
    trigger = triggered_by[place]
    place = np.where(trigger == NO_ROW, place, trigger)
    order = np.lexsort((trigger != NO_ROW, place))

    return Requests(
        n_bytes=np.concatenate((begin.block_bytes, history.n_bytes[requested])),
        stream=np.concatenate((begin.stream[begin.segment_of_block], history.stream[requested])),
        private=np.concatenate(
            (
                begin.private[begin.segment_of_block],
                find_private_pools(snapshot, replay.device, history.address[requested]),
            )
        ),
        place=place[order],
        kind=kind[order].astype(np.uint8),
        which=np.concatenate([which for _, _, which in actions])[order],
        begin=begin,
    )


def _build_begin(snapshot: MemorySnapshot, replay: DeviceReplay) -> InitialState | None:
    """Build the initial state, or None if it is not known or inconsistent."""
    segments = build_segment_map_at(snapshot, replay, 0)
    is_on_device = snapshot.segments.device == replay.device
    if segments is None:
        # Expandable segments: only an empty initial state is known.
        if replay.reserved_bytes[0] or len(replay.earlier_frees) or NO_ROW in replay.since:
            return None
        segments = NO_SEGMENTS
    elif len(segments.segment_address) and bool(
        snapshot.segments.is_expandable[is_on_device].any()
    ):
        return None

    begin = InitialState(
        address=segments.segment_address,
        n_bytes=segments.segment_bytes,
        stream=segments.segment_stream,
        is_small=segments.is_small,
        private=find_private_pools(snapshot, replay.device, segments.segment_address),
        block_address=segments.block_address,
        block_bytes=segments.block_bytes,
    )
    return begin.with_unsplit_rests() if begin.is_consistent else None


def _find_pending_frees(
    snapshot: MemorySnapshot, replay: DeviceReplay, begin: InitialState, triggered_by: Rows
) -> tuple[Rows, Rows]:
    """Find frees that did not complete at once: their indices, and their requests."""
    history, rows = snapshot.history, replay.rows
    action, address = history.action[rows], history.address[rows]

    # Without recorded completions, requested frees end a block.
    is_pending = (action == Action.FREE_REQUESTED) & ~replay.ends
    is_complete = (action == Action.FREE_COMPLETED) & (triggered_by == NO_ROW)
    is_pending[:-1] &= ~(is_complete[1:] & (address[1:] == address[:-1]))

    places = np.flatnonzero(is_pending | (action == Action.ALLOC))
    pairs = pair_by_address(address[places], action[places], Action.ALLOC, Action.FREE_REQUESTED)
    freed = np.flatnonzero(pairs.end != NO_ROW)
    earlier = places[pairs.earlier_ends]
    request = begin.requests_at(address[earlier])
    is_known = request != NO_ROW
    return (
        np.concatenate((places[pairs.end[freed]], earlier[is_known])),
        np.concatenate((freed + len(begin.block_address), request[is_known])),
    )


def _find_triggers(snapshot: MemorySnapshot, replay: DeviceReplay, flushes: Flushes) -> Rows:
    """Find the request that triggered each entry, as an index or -1. Shape ``(n,)``.

    Before flushing its cache for a retry, an allocator synchronizes with all streams and completes
    pending frees. Such a completion has the stack of the request. A completion directly after its
    free, without that stack, belongs to the free.
    """
    history, rows = snapshot.history, replay.rows
    action, address, stack = (
        column[rows] for column in (history.action, history.address, history.stack)
    )
    trigger = np.full(len(rows), NO_ROW, dtype=np.intp)

    allocs = np.flatnonzero((action == Action.ALLOC) | (action == Action.OOM))
    at = np.searchsorted(allocs, flushes.first)
    is_retry = (flushes.cause == FlushCause.RETRY) & (at < len(allocs))

    # Go back over the completions before each flush for a retry.
    for row in np.flatnonzero(is_retry).tolist():
        alloc, place = allocs[at[row]], int(flushes.first[row]) - 1
        while place >= 0 and action[place] == Action.FREE_COMPLETED:
            follows = place > 0 and action[place - 1] == Action.FREE_REQUESTED
            if follows and address[place - 1] == address[place]:
                is_of_free = stack[place] != stack[alloc] or stack[place] == stack[place - 1]
                if is_of_free:
                    break
            trigger[place] = alloc
            place -= 1
    return trigger
