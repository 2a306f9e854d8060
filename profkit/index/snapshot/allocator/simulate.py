"""Requests to an allocator, and their simulation with given settings."""

from dataclasses import replace
from enum import IntEnum
from typing import Final, Literal

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.snapshot.allocator.blocks import Block, StreamPool
from profkit.index.snapshot.allocator.caching import COMMON, CachingAllocator
from profkit.index.snapshot.allocator.settings import BLOCK_BYTES, SMALL_BYTES, AllocatorSettings
from profkit.model.events import NO_ROW, Int32s, Int64s, Mask, Rows
from profkit.model.snapshot import UInt8s

NEVER: Final = -1
PoolSize = Literal["all", "small", "large"]


class RequestKind(IntEnum):
    """Kind of an action of the program."""

    ALLOC = 0
    PENDING_FREE = 1
    """Freed a block that is pending on another stream."""
    FREE = 2
    """Freed a block, or the other stream finished."""
    EMPTY = 3
    """Emptied the cache."""
    TRY = 4
    """Tried an allocation that failed."""


_ALLOC, _FREE = int(RequestKind.ALLOC), int(RequestKind.FREE)


@dataclass(frozen=True)
class InitialState:
    """Segments and live blocks before a history's first entry, each by address.

    Attributes:
        address: Start of each segment. Shape ``(s,)``.
        stream: The stream that it serves.
        is_small: Whether it serves requests up to 1 MiB.
        private: Number of its private pool, or 0.
        block_address: Start of each live block; its index is its request. Shape ``(b,)``.
    """

    address: Int64s
    n_bytes: Int64s
    stream: Int64s
    is_small: Mask
    private: Int32s
    block_address: Int64s
    block_bytes: Int64s

    def __len__(self) -> int:
        return len(self.address)

    @property
    def segment_of_block(self) -> Rows:
        """Return the segment of each block. Shape ``(b,)``."""
        segment = np.searchsorted(self.address, self.block_address, side="right") - 1
        return np.asarray(segment, dtype=np.intp)

    @property
    def is_consistent(self) -> bool:
        """Return whether blocks are disjoint and within disjoint segments."""
        segment_of_block, end = self.segment_of_block, self.block_address + self.block_bytes
        if (segment_of_block < 0).any() or (end[:-1] > self.block_address[1:]).any():
            return False

        limit = self.address + self.n_bytes
        is_invalid = (self.address < 0) | (self.n_bytes <= 0)
        is_invalid[:-1] |= limit[:-1] > self.address[1:]
        return not (
            is_invalid.any()
            or (self.block_bytes <= 0).any()
            or (end > limit[segment_of_block]).any()
        )

    def with_unsplit_rests(self) -> "InitialState":
        """Return the state with the unsplit rests of large blocks.

        For blocks that are freed later the history has the requested size. A rest of up to 1 MiB is
        not split off a large block, and free blocks of that kind are larger.
        """
        limit = (self.address + self.n_bytes)[self.segment_of_block]
        end = self.block_address + self.block_bytes
        next_begin = np.append(self.block_address[1:], np.iinfo(np.int64).max)[: len(end)]
        rest_bytes = np.minimum(limit, next_begin) - end
        is_unsplit = ~self.is_small[self.segment_of_block] & (rest_bytes <= SMALL_BYTES)
        return replace(self, block_bytes=self.block_bytes + np.where(is_unsplit, rest_bytes, 0))

    def requests_at(self, address: Int64s) -> Rows:
        """Return the request of the block at each address, or -1. Shape of ``address``."""
        if not len(self.block_address):
            return np.full(len(address), NO_ROW, dtype=np.intp)
        at = np.searchsorted(self.block_address, address)
        at = np.minimum(at, len(self.block_address) - 1)
        return np.where(self.block_address[at] == address, at, NO_ROW).astype(np.intp)


@dataclass(frozen=True)
class Requests:
    """The requests of one device, and the actions on them in time order.

    Attributes:
        n_bytes: Size of each request, blocks of the initial state first. Shape ``(r,)``.
        private: Number of its private pool, or 0.
        place: Indices of actions in the device's history. Shape ``(d,)``.
        kind: A :class:`RequestKind` value each.
        which: Index of the request; unused for :attr:`RequestKind.EMPTY`.
    """

    n_bytes: Int64s
    stream: Int64s
    private: Int32s
    place: Rows
    kind: UInt8s
    which: Rows
    begin: InitialState


@dataclass(frozen=True)
class SimulatedRun:
    """Reserved bytes over a simulation, private pools excluded.

    Attributes:
        begin_bytes: Reserved bytes at the start.
        place: Indices of the changes, ascending. Shape ``(c,)``.
        change_bytes: Difference of each change.
        failed_at: Index of the first allocation that fails here but did not in the history, where
            the simulation ends; -1 if none does.
        recovered: Indices of allocations that failed in the history and succeed here.
    """

    begin_bytes: int
    place: Rows
    change_bytes: Int64s
    failed_at: int = NEVER
    recovered: tuple[int, ...] = ()

    def after(self, place: Rows) -> Int64s:
        """Return the reserved bytes after each entry. Shape of ``place``."""
        levels = self.begin_bytes + np.concatenate(([0], np.cumsum(self.change_bytes)))
        return np.asarray(levels[np.searchsorted(self.place, place, side="right")])

    @property
    def peak_bytes(self) -> int:
        """Return the peak of reserved bytes."""
        return self.begin_bytes + max(0, int(np.cumsum(self.change_bytes).max(initial=0)))


def combine(first: SimulatedRun, second: SimulatedRun) -> SimulatedRun:
    """Add two simulations of independent pools."""
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
    capacity_bytes: int | None = None,
    limit_bytes: int | None = None,
    pool_size: PoolSize = "all",
) -> SimulatedRun:
    """Simulate all requests. Capacity and limit are described at :class:`CachingAllocator`.

    Args:
        pool_size: Which requests. With unlimited capacity, requests up to 1 MiB and larger ones do
            not affect each other.
    """
    allocator = CachingAllocator(settings, capacity_bytes, limit_bytes)
    begin, n_bytes = requests.begin, _round(requests, settings)
    is_small = n_bytes <= SMALL_BYTES
    # Initial blocks stay in the pool of their segment, whatever their size.
    is_small[: len(begin.segment_of_block)] = begin.is_small[begin.segment_of_block]

    is_simulated, is_adopted = np.ones(len(requests.kind), np.bool_), np.ones(len(begin), np.bool_)
    if pool_size != "all":
        is_adopted = begin.is_small == (pool_size == "small")
        # Emptying the cache concerns all pools.
        is_simulated = (is_small[requests.which] == (pool_size == "small")) | (
            requests.kind == RequestKind.EMPTY
        )

    live = _adopt(allocator, requests, is_adopted)
    failed_at, recovered = _run(
        allocator,
        requests,
        is_simulated,
        live,
        n_bytes.tolist(),
        _find_pools(allocator, requests, is_small),
    )

    changes = [(place, n) for place, n, private in allocator.changes if private == COMMON]
    place, change = np.array(changes, dtype=np.int64).reshape(-1, 2).T
    return SimulatedRun(
        begin_bytes=int(begin.n_bytes[is_adopted & (begin.private == COMMON)].sum()),
        place=place.astype(np.intp),
        change_bytes=change,
        failed_at=failed_at,
        recovered=recovered,
    )


def _run(
    allocator: CachingAllocator,
    requests: Requests,
    is_simulated: Mask,
    live: list[Block | None],
    n_bytes: list[int],
    pools: list[StreamPool],
) -> tuple[int, tuple[int, ...]]:
    """Run the simulation, and return ``failed_at`` and ``recovered``."""
    recovered: list[int] = []
    actions = zip(
        requests.place[is_simulated].tolist(),
        requests.kind[is_simulated].tolist(),
        requests.which[is_simulated].tolist(),
        strict=True,
    )

    # The most frequent kinds are tested first, and as plain integers, which compare faster.
    for place, kind, which in actions:
        allocator.place = place
        if kind == _FREE:
            block, live[which] = live[which], None
            if block is None:
                allocator.complete_free(which)
            else:
                allocator.free(block)
        elif kind == _ALLOC:
            live[which] = block = allocator.alloc(n_bytes[which], pools[which])
            if block is None:
                return place, tuple(recovered)
        elif kind == RequestKind.EMPTY:
            allocator.empty_cache()
        elif kind == RequestKind.PENDING_FREE:
            block, live[which] = live[which], None
            if block is not None:
                allocator.defer_free(which, block)
        else:
            # It failed in the history, so the program never had the block.
            block = allocator.alloc(n_bytes[which], pools[which])
            if block is not None:
                recovered.append(place)
                allocator.free(block)
    return NEVER, tuple(recovered)


def _round(requests: Requests, settings: AllocatorSettings) -> Int64s:
    """Return the block size that each request needs. Shape ``(r,)``."""
    if not settings.divisions:
        return np.maximum(BLOCK_BYTES, -(-requests.n_bytes // BLOCK_BYTES) * BLOCK_BYTES)
    lengths, which = np.unique(requests.n_bytes, return_inverse=True)
    rounded = np.array([settings.round(length) for length in lengths.tolist()], dtype=np.int64)
    return np.asarray(rounded[which])


def _find_pools(
    allocator: CachingAllocator, requests: Requests, is_small: Mask
) -> list[StreamPool]:
    """Find the pool of each request."""
    # One number for each combination of stream, private pool and size.
    streams, stream = np.unique(requests.stream, return_inverse=True)
    n_private = int(requests.private.max(initial=0)) + 1
    key = (stream.reshape(-1) * n_private + requests.private) * 2 + is_small
    kinds, which = np.unique(key, return_inverse=True)

    pools = []
    for kind in kinds.tolist():
        number, private = divmod(kind // 2, n_private)
        pools.append(allocator.pool(int(streams[number]), is_small=bool(kind % 2), private=private))
    return [pools[place] for place in which.tolist()]


def _adopt(allocator: CachingAllocator, requests: Requests, is_adopted: Mask) -> list[Block | None]:
    """Adopt the initial state, and return its blocks by request, None for other requests."""
    begin = requests.begin
    live: list[Block | None] = [None] * len(requests.n_bytes)
    bounds = np.searchsorted(begin.segment_of_block, np.arange(len(begin) + 1)).tolist()
    blocks = list(zip(begin.block_address.tolist(), begin.block_bytes.tolist(), strict=True))

    for row in np.flatnonzero(is_adopted).tolist():
        pool = allocator.pool(
            int(begin.stream[row]),
            is_small=bool(begin.is_small[row]),
            private=int(begin.private[row]),
        )
        first, last = bounds[row], bounds[row + 1]
        live[first:last] = allocator.adopt(
            pool, int(begin.address[row]), int(begin.n_bytes[row]), blocks[first:last]
        )
    return live
