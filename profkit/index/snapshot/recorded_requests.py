"""The requests that a program made to its allocator, from a snapshot's history."""

from typing import Final

import numpy as np

from profkit.index.snapshot.allocator.requests import InitialState, RequestKind, Requests
from profkit.index.snapshot.cache_flushes import FlushCause, Flushes
from profkit.index.snapshot.replay import DeviceReplay, paired, private_pools
from profkit.index.snapshot.segment_map import segment_map_at
from profkit.model.events import NO_ROW, Rows
from profkit.model.snapshot import Action, MemorySnapshot

_NO_BYTES: Final = np.zeros(0, dtype=np.int64)
_NOTHING: Final = InitialState(
    address=_NO_BYTES,
    n_bytes=_NO_BYTES,
    stream=_NO_BYTES,
    is_small=np.zeros(0, dtype=np.bool_),
    private=np.zeros(0, dtype=np.int32),
    block_address=_NO_BYTES,
    block_bytes=_NO_BYTES,
)


def recorded_requests(
    snapshot: MemorySnapshot, replay: DeviceReplay, flushes: Flushes
) -> Requests | None:
    """The requests of one device.

    Args:
        replay: The history of the device.
        flushes: When cached memory was given back.

    Returns:
        None where it is not known what stood before the first row, or the history is odd.
    """
    begin = _begin(snapshot, replay)
    history, rows = snapshot.history, replay.rows
    tried = np.flatnonzero(history.action[rows] == Action.OOM)
    asked = rows[np.concatenate((replay.alloc, tried))]
    if begin is None or not len(asked) or int(history.n_bytes[asked].min()) < 0:
        return None
    n, n_allocs = len(begin.block_address), len(replay.alloc)
    own, ended = np.arange(n, n + n_allocs), replay.free != NO_ROW
    earlier = begin.requests_at(history.address[rows[replay.earlier_frees]])
    caused = _caused(snapshot, replay, flushes)
    wait, waiting = _waits(snapshot, replay, begin, caused)
    empty = flushes.first[flushes.cause != FlushCause.RETRY]
    done = (
        (RequestKind.ALLOC, replay.alloc, own),
        (RequestKind.FREE, replay.free[ended], own[ended]),
        (RequestKind.FREE, replay.earlier_frees[earlier != NO_ROW], earlier[earlier != NO_ROW]),
        (RequestKind.WAIT, wait, waiting),
        (RequestKind.EMPTY, empty, np.full(len(empty), NO_ROW, dtype=np.intp)),
        (RequestKind.TRY, tried, np.arange(n + n_allocs, n + len(asked))),
    )
    kind = np.repeat([each for each, _, _ in done], [len(place) for _, place, _ in done])
    place = np.concatenate([place for _, place, _ in done])
    of_request = caused[place]
    place = np.where(of_request == NO_ROW, place, of_request)
    order = np.lexsort((of_request != NO_ROW, place))
    return Requests(
        n_bytes=np.concatenate((begin.block_bytes, history.n_bytes[asked])),
        stream=np.concatenate((begin.stream[begin.holder], history.stream[asked])),
        private=np.concatenate(
            (
                begin.private[begin.holder],
                private_pools(snapshot, replay.device, history.address[asked]),
            )
        ),
        place=place[order],
        kind=kind[order].astype(np.uint8),
        which=np.concatenate([which for _, _, which in done])[order],
        begin=begin,
    )


def _begin(snapshot: MemorySnapshot, replay: DeviceReplay) -> InitialState | None:
    """What stood before the first row; None where that is not known, or cannot have been."""
    layout = segment_map_at(snapshot, replay, 0)
    if layout is None:
        # Expandable segments: only where nothing stood it is known.
        is_empty = not int(replay.reserved_bytes[0]) and not len(replay.earlier_frees)
        return _NOTHING if is_empty and bool((replay.since != NO_ROW).all()) else None
    here = snapshot.segments.device == replay.device
    if len(layout.segment_address) and bool(snapshot.segments.is_expandable[here].any()):
        return None
    begin = InitialState(
        address=layout.segment_address,
        n_bytes=layout.segment_bytes,
        stream=layout.segment_stream,
        is_small=layout.is_small,
        private=private_pools(snapshot, replay.device, layout.segment_address),
        block_address=layout.block_address,
        block_bytes=layout.block_bytes,
    )
    return begin.with_unsplit_rests() if begin.is_consistent else None


def _waits(
    snapshot: MemorySnapshot, replay: DeviceReplay, begin: InitialState, caused: Rows
) -> tuple[Rows, Rows]:
    """Frees that were not complete at once: their places, and the requests that they are of."""
    history, rows = snapshot.history, replay.rows
    action, address = history.action[rows], history.address[rows]
    waits = action == Action.FREE_REQUESTED
    # Where completions were not kept, requests to free are what ends a block.
    waits[replay.free[replay.free != NO_ROW]] = False
    waits[replay.earlier_frees] = False
    completes = (action == Action.FREE_COMPLETED) & (caused == NO_ROW)
    waits[:-1] &= ~(completes[1:] & (address[1:] == address[:-1]))
    places = np.flatnonzero(waits | (action == Action.ALLOC))
    pairs = paired(address[places], action[places], Action.ALLOC, Action.FREE_REQUESTED)
    own = np.flatnonzero(pairs.end != NO_ROW)
    earlier = places[pairs.earlier_ends]
    request = begin.requests_at(address[earlier])
    known = request != NO_ROW
    return (
        np.concatenate((places[pairs.end[own]], earlier[known])),
        np.concatenate((own + len(begin.block_address), request[known])),
    )


def _caused(snapshot: MemorySnapshot, replay: DeviceReplay, flushes: Flushes) -> Rows:
    """For each row that a request made happen the place of the request, else -1. Shape ``(n,)``.

    Before an allocator gives cached memory back for want of room it waits for all streams, and
    completes what they still used. Such a completion has the stack of the request, and one right
    after its free without that is the free's own.
    """
    history, rows = snapshot.history, replay.rows
    action, address, stack = (
        column[rows] for column in (history.action, history.address, history.stack)
    )
    found = np.full(len(rows), NO_ROW, dtype=np.intp)
    asks = np.flatnonzero((action == Action.ALLOC) | (action == Action.OOM))
    at = np.searchsorted(asks, flushes.first)
    is_of_request = (flushes.cause == FlushCause.RETRY) & (at < len(asks))
    for row in np.flatnonzero(is_of_request).tolist():
        asking, place = asks[at[row]], int(flushes.first[row]) - 1
        while place >= 0 and action[place] == Action.FREE_COMPLETED:
            follows = place > 0 and action[place - 1] == Action.FREE_REQUESTED
            if follows and address[place - 1] == address[place]:
                own = stack[place] != stack[asking] or stack[place] == stack[place - 1]
                if own:
                    break
            found[place] = asking
            place -= 1
    return found
