"""A history's requests, played again by an allocator of given settings."""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from profkit.index.snapshot.allocator.blocks import Block, Pool
from profkit.index.snapshot.allocator.caching import COMMON, CachingAllocator
from profkit.index.snapshot.allocator.requests import RequestKind, Requests
from profkit.index.snapshot.allocator.settings import AllocatorSettings
from profkit.index.snapshot.allocator.sizes import BLOCK_BYTES, SMALL_BYTES
from profkit.model.events import Int64s, Mask, Rows

NEVER: Final = -1
Family = Literal["all", "small", "large"]
_ALLOC, _FREE = int(RequestKind.ALLOC), int(RequestKind.FREE)


@dataclass(frozen=True)
class SimulatedRun:
    """How what is reserved went, private pools aside.

    Attributes:
        begin_bytes: What was reserved at first.
        place: Places of the changes, ascending. Shape ``(c,)``.
        change_bytes: What each took from the driver or (below 0) gave back.
        failed_at: The place of the first request that was met in the history and is not here; -1
            where all are. There the course ends.
        met: Places of requests that were not met in the history and are here.
    """

    begin_bytes: int
    place: Rows
    change_bytes: Int64s
    failed_at: int = NEVER
    met: tuple[int, ...] = ()

    def after(self, place: Rows) -> Int64s:
        """What was reserved when each of some rows was done. Shape of ``place``."""
        levels = self.begin_bytes + np.concatenate(([0], np.cumsum(self.change_bytes)))
        return np.asarray(levels[np.searchsorted(self.place, place, side="right")])

    @property
    def peak_bytes(self) -> int:
        """The most that was reserved at once."""
        return self.begin_bytes + max(0, int(np.cumsum(self.change_bytes).max(initial=0)))


def combined(first: SimulatedRun, second: SimulatedRun) -> SimulatedRun:
    """The course of two families of pools that know nothing of each other.

    Args:
        second: That of the other.
    """
    place = np.concatenate((first.place, second.place))
    order = np.argsort(place, kind="stable")
    return SimulatedRun(
        begin_bytes=first.begin_bytes + second.begin_bytes,
        place=place[order],
        change_bytes=np.concatenate((first.change_bytes, second.change_bytes))[order],
    )


def simulate(
    requests: Requests,
    settings: AllocatorSettings,
    room_bytes: int | None = None,
    limit_bytes: int | None = None,
    family: Family = "all",
) -> SimulatedRun:
    """Play all requests.

    Args:
        settings: The allocator's settings.
        room_bytes: What the driver has for the allocator, or None where that never ends.
        limit_bytes: What the process allows itself, or None.
        family: Which requests. Without an end to the room those up to 1 MiB and the others do not
            touch each other.
    """
    allocator = CachingAllocator(settings, room_bytes, limit_bytes)
    begin, n_bytes = requests.begin, _rounded(requests, settings)
    small = n_bytes <= SMALL_BYTES
    small[: len(begin.holder)] = begin.is_small[begin.holder]
    is_played, is_adopted = np.ones(len(requests.kind), np.bool_), np.ones(len(begin), np.bool_)
    if family != "all":
        is_adopted = begin.is_small == (family == "small")
        is_played = (small[requests.which] == (family == "small")) | (
            requests.kind == RequestKind.EMPTY
        )
    held = _adopted(allocator, requests, is_adopted)
    failed_at, met = _played(
        allocator, requests, is_played, held, n_bytes.tolist(), _pools(allocator, requests, small)
    )
    changes = [(place, n) for place, n, private in allocator.changes if private == COMMON]
    place, change = np.array(changes, dtype=np.int64).reshape(-1, 2).T
    return SimulatedRun(
        begin_bytes=int(begin.n_bytes[is_adopted & (begin.private == COMMON)].sum()),
        place=place.astype(np.intp),
        change_bytes=change,
        failed_at=failed_at,
        met=met,
    )


def _played(
    allocator: CachingAllocator,
    requests: Requests,
    is_played: Mask,
    held: list[Block | None],
    n_bytes: list[int],
    pools: list[Pool],
) -> tuple[int, tuple[int, ...]]:
    """Play; where a request failed that was met in the history, and which were met here alone."""
    met: list[int] = []
    done = zip(
        requests.place[is_played].tolist(),
        requests.kind[is_played].tolist(),
        requests.which[is_played].tolist(),
        strict=True,
    )
    for place, kind, which in done:
        allocator.place = place
        if kind == _FREE:
            block, held[which] = held[which], None
            if block is None:
                allocator.done(which)
            else:
                allocator.free(block)
        elif kind == _ALLOC:
            held[which] = block = allocator.alloc(n_bytes[which], pools[which])
            if block is None:
                return place, tuple(met)
        elif kind == RequestKind.EMPTY:
            allocator.empty_cache()
        elif kind == RequestKind.WAIT:
            block, held[which] = held[which], None
            if block is not None:
                allocator.wait(which, block)
        else:
            block = allocator.alloc(n_bytes[which], pools[which])
            if block is not None:
                met.append(place)
                allocator.free(block)
    return NEVER, tuple(met)


def _rounded(requests: Requests, settings: AllocatorSettings) -> Int64s:
    """The length of the block that each request needs. Shape ``(r,)``."""
    if not settings.divisions:
        return np.maximum(BLOCK_BYTES, -(-requests.n_bytes // BLOCK_BYTES) * BLOCK_BYTES)
    lengths, which = np.unique(requests.n_bytes, return_inverse=True)
    rounded = np.array([settings.rounded(each) for each in lengths.tolist()], dtype=np.int64)
    return np.asarray(rounded[which])


def _pools(allocator: CachingAllocator, requests: Requests, small: Mask) -> list[Pool]:
    """The pool of each request."""
    # One number for each of the three combined: there are few streams, and few pools.
    streams, stream = np.unique(requests.stream, return_inverse=True)
    n_private = int(requests.private.max(initial=0)) + 1
    key = (stream.reshape(-1) * n_private + requests.private) * 2 + small
    kinds, which = np.unique(key, return_inverse=True)
    made = []
    for kind in kinds.tolist():
        number, private = divmod(kind // 2, n_private)
        made.append(allocator.pool(int(streams[number]), is_small=bool(kind % 2), private=private))
    return [made[each] for each in which.tolist()]


def _adopted(
    allocator: CachingAllocator, requests: Requests, is_adopted: Mask
) -> list[Block | None]:
    """The blocks that stood before the first row, by request, and None for all others."""
    begin = requests.begin
    held: list[Block | None] = [None] * len(requests.n_bytes)
    bounds = np.searchsorted(begin.holder, np.arange(len(begin) + 1)).tolist()
    blocks = list(zip(begin.block_address.tolist(), begin.block_bytes.tolist(), strict=True))
    for row in np.flatnonzero(is_adopted).tolist():
        pool = allocator.pool(
            int(begin.stream[row]),
            is_small=bool(begin.is_small[row]),
            private=int(begin.private[row]),
        )
        first, last = bounds[row], bounds[row + 1]
        held[first:last] = allocator.adopt(
            pool, int(begin.address[row]), int(begin.n_bytes[row]), blocks[first:last]
        )
    return held
