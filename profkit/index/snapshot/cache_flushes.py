"""Cache flushes: runs in which an allocator returns cached segments to the driver."""

from enum import IntEnum
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.snapshot.replay import DeviceReplay
from profkit.index.snapshot.stack_lines import stacks_with
from profkit.model.events import MISSING, Int32s, Int64s, Mask, Rows
from profkit.model.snapshot import NO_STACK, Action, MemorySnapshot, Stacks, UInt8s

_FREES: Final = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
_DRIVER_ALLOCS: Final = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_AFTER_FLUSH: Final = (*_DRIVER_ALLOCS, Action.OOM)
_ALLOCS: Final = (*_DRIVER_ALLOCS, Action.ALLOC)
_EMPTY_CACHE: Final = ("empty_cache", "emptyCache")


class FlushCause(IntEnum):
    """Cause of a cache flush."""

    UNKNOWN = 0
    """The history does not show it."""
    EMPTY_CACHE = 1
    """``empty_cache`` is in the stack."""
    RETRY = 2
    """An allocation found no room: the allocator flushes its cache and retries."""


@dataclass(frozen=True)
class Flushes:
    """Cache flushes: runs of consecutive frees of segments, in time order.

    Attributes:
        first: Index in the device's history of the first free. Shape ``(f,)``.
        last: Index of the last free.
        n_bytes: Bytes returned to the driver.
        reallocated_bytes: Bytes obtained from the driver after it, before the next flush or the
            end; at most ``n_bytes``.
        n_reallocations: Number of driver calls for these.
        cause: A :class:`FlushCause` value.
        stack: Stack of the first free.
    """

    first: Rows
    last: Rows
    n_bytes: Int64s
    reallocated_bytes: Int64s
    n_reallocations: Int64s
    cause: Int32s
    stack: Int32s

    def __len__(self) -> int:
        return len(self.first)

    @property
    def n_calls(self) -> Int64s:
        """Number of segments freed by each flush. Shape ``(f,)``."""
        return np.asarray(self.last - self.first + 1)


def cache_flushes(snapshot: MemorySnapshot, replay: DeviceReplay) -> Flushes:
    """Find every cache flush of one device."""
    history, rows = snapshot.history, replay.rows
    action, n_bytes, stack = history.action[rows], history.n_bytes[rows], history.stack[rows]
    frees = np.flatnonzero(np.isin(action, _FREES))
    allocs = np.flatnonzero(np.isin(action, _DRIVER_ALLOCS))
    apart = np.diff(frees) > 1
    starts = np.flatnonzero(np.concatenate(([True], apart))) if len(frees) else frees
    first = frees[starts]
    last = frees[np.append(starts[1:], len(frees)) - 1] if len(frees) else frees
    alloc_from = np.searchsorted(allocs, last)
    alloc_to = (
        np.searchsorted(allocs, np.append(first[1:], len(rows))) if len(first) else alloc_from
    )
    released = _sum_between(n_bytes[frees], starts, np.append(starts[1:], len(frees))[: len(first)])
    return Flushes(
        first=first,
        last=last,
        n_bytes=released,
        reallocated_bytes=np.minimum(_sum_between(n_bytes[allocs], alloc_from, alloc_to), released),
        n_reallocations=alloc_to - alloc_from,
        cause=_causes(
            action, stack, first, last, _emptying(snapshot.stacks), is_old=_is_old(snapshot)
        ),
        stack=stack[first],
    )


def _sum_between(values: Int64s, start: Rows, end: Rows) -> Int64s:
    total = np.concatenate(([0], np.cumsum(values)))
    return np.asarray(total[end] - total[start])


def _is_old(snapshot: MemorySnapshot) -> bool:
    """Whether the history is from before torch 2.1, without times."""
    times = snapshot.history.time_us
    return bool(len(times)) and int(times[0]) == MISSING


def _emptying(stacks: Stacks) -> Mask:
    """Stacks that call ``empty_cache``. Shape ``(k,)``."""
    names = (any(name in f.function for name in _EMPTY_CACHE) for f in stacks.frames)
    return stacks_with(stacks, np.fromiter(names, np.bool_, len(stacks.frames)))


def _causes(
    action: UInt8s, stack: Int32s, first: Rows, last: Rows, emptying: Mask, *, is_old: bool
) -> Int32s:
    """The cause of each flush.

    Before flushing for a retry the allocator records nothing of the request, so the flush directly
    precedes the request's entry, with the same stack where stacks are recorded. Since torch 2.1,
    which also records times, a flush without a stack before a request with one is not caused by it:
    ``context="alloc"`` records stacks of requests and not that of ``empty_cache``. Older versions
    record no stack of a flush. There, as without any stacks, a flush right after an allocation is
    unlikely to be ``empty_cache``, since programs free memory before emptying the cache; and if
    there is one, the other flushes before requests are assumed to be retries as well.
    """
    following = np.minimum(last + 1, len(action) - 1)
    precedes_alloc = (last + 1 < len(action)) & np.isin(action[following], _AFTER_FLUSH)
    own = stack[first]
    known = own != NO_STACK
    before = np.maximum(first - 1, 0)
    after_alloc = (first > 0) & np.isin(action[before], _ALLOCS)
    found = np.full(len(first), int(FlushCause.UNKNOWN), dtype=np.int32)
    found[precedes_alloc & known & (stack[following] == own)] = FlushCause.RETRY
    guessed = precedes_alloc & ~known & (is_old | (stack[following] == NO_STACK))
    if (guessed & after_alloc).any():
        found[guessed] = FlushCause.RETRY
    if len(emptying):
        found[known & emptying[np.where(known, own, 0)]] = FlushCause.EMPTY_CACHE
    return found
