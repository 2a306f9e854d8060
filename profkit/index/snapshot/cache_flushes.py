"""Cache flushes: runs in which an allocator returns cached segments to the driver."""

from enum import IntEnum
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.snapshot.replay import RELEASES, RESERVES, DeviceReplay
from profkit.index.snapshot.stack_lines import stacks_with
from profkit.model.events import MISSING, Int32s, Int64s, Mask, Rows
from profkit.model.snapshot import NO_STACK, Action, MemorySnapshot, Stacks, UInt8s

_AFTER_FLUSH: Final = (*RESERVES, Action.OOM)
_ALLOCS: Final = (*RESERVES, Action.ALLOC)
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
        n_reallocations: Number of driver calls for the reallocated bytes.
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
        """Return the number of segments freed by each flush. Shape ``(f,)``."""
        return np.asarray(self.last - self.first + 1)


def find_cache_flushes(snapshot: MemorySnapshot, replay: DeviceReplay) -> Flushes:
    """Find every cache flush of one device."""
    history, rows = snapshot.history, replay.rows
    action, n_bytes, stack = history.action[rows], history.n_bytes[rows], history.stack[rows]

    frees = np.flatnonzero(np.isin(action, RELEASES))
    allocs = np.flatnonzero(np.isin(action, RESERVES))

    # Frees in a row are one flush.
    is_apart = np.diff(frees) > 1
    starts = np.flatnonzero(np.concatenate(([True], is_apart))) if len(frees) else frees
    first = frees[starts]
    last = frees[np.append(starts[1:], len(frees)) - 1] if len(frees) else frees

    first_alloc = np.searchsorted(allocs, last)
    end_alloc = (
        np.searchsorted(allocs, np.append(first[1:], len(rows))) if len(first) else first_alloc
    )

    ends = np.append(starts[1:], len(frees))[: len(first)]
    released = _sum_between(n_bytes[frees], starts, ends)
    reallocated = _sum_between(n_bytes[allocs], first_alloc, end_alloc)
    is_emptying = _find_emptying_stacks(snapshot.stacks)
    return Flushes(
        first=first,
        last=last,
        n_bytes=released,
        reallocated_bytes=np.minimum(reallocated, released),
        n_reallocations=end_alloc - first_alloc,
        cause=_find_causes(action, stack, first, last, is_emptying, is_old=_is_old(snapshot)),
        stack=stack[first],
    )


def _sum_between(values: Int64s, start: Rows, end: Rows) -> Int64s:
    total = np.concatenate(([0], np.cumsum(values)))
    return np.asarray(total[end] - total[start])


def _is_old(snapshot: MemorySnapshot) -> bool:
    """Return whether the history is from before torch 2.1, without times."""
    times = snapshot.history.time_us
    return bool(len(times)) and int(times[0]) == MISSING


def _find_emptying_stacks(stacks: Stacks) -> Mask:
    """Find the stacks that call ``empty_cache``. Shape ``(k,)``."""
    names = (any(name in frame.function for name in _EMPTY_CACHE) for frame in stacks.frames)
    return stacks_with(stacks, np.fromiter(names, np.bool_, len(stacks.frames)))


def _find_causes(
    action: UInt8s, stack: Int32s, first: Rows, last: Rows, is_emptying: Mask, *, is_old: bool
) -> Int32s:
    """Find the cause of each flush.

    Before flushing for a retry the allocator records nothing of the request, so the flush directly
    precedes the request's entry, with the same stack where stacks are recorded. Since torch 2.1,
    which also records times, a flush without a stack before a request with one has another cause:
    ``context="alloc"`` records stacks of requests and not of ``empty_cache``. Older versions record
    no stack of a flush. There, as without any stacks, a flush right after an allocation is unlikely
    to be ``empty_cache``, since programs free memory before they empty the cache. If it occurs, all
    other flushes before requests are assumed to be retries as well.
    """
    following = np.minimum(last + 1, len(action) - 1)
    is_before_alloc = (last + 1 < len(action)) & np.isin(action[following], _AFTER_FLUSH)

    flush_stack = stack[first]
    has_stack = flush_stack != NO_STACK

    before = np.maximum(first - 1, 0)
    is_after_alloc = (first > 0) & np.isin(action[before], _ALLOCS)

    cause = np.full(len(first), int(FlushCause.UNKNOWN), dtype=np.int32)
    cause[is_before_alloc & has_stack & (stack[following] == flush_stack)] = FlushCause.RETRY

    is_guess = is_before_alloc & ~has_stack & (is_old | (stack[following] == NO_STACK))
    if (is_guess & is_after_alloc).any():
        cause[is_guess] = FlushCause.RETRY
    if len(is_emptying):
        cause[has_stack & is_emptying[np.where(has_stack, flush_stack, 0)]] = FlushCause.EMPTY_CACHE
    return cause
