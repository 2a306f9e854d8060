"""The times that an allocator gave cached memory back to the driver, and who made it do so."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from profkit.index.snapshot.replay import DeviceReplay
from profkit.model.events import MISSING, Int32s, Int64s, Mask, Rows
from profkit.model.snapshot import NO_STACK, Action, MemorySnapshot, Stacks, UInt8s

_FREES: Final = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
_ASKS: Final = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_MAKES_ROOM: Final = (*_ASKS, Action.OOM)
_TAKES: Final = (*_ASKS, Action.ALLOC)
_EMPTIES: Final = ("empty_cache", "emptyCache")


class FlushCause(IntEnum):
    """Who made the allocator give memory back."""

    UNKNOWN = 0
    """Nothing tells."""
    EMPTY_CACHE = 1
    """``empty_cache`` is in the stack."""
    RETRY = 2
    """A request that found no room: the allocator frees what it caches, and asks again."""


@dataclass(frozen=True)
class Flushes:
    """Runs of frees of segments with nothing between them, in the order of time.

    Attributes:
        first: Place of the first free of each. Shape ``(f,)``.
        last: Place of the last.
        n_bytes: Bytes that it gave back.
        reallocated_bytes: What was asked of the driver after it, and before the next one or the
            end; at most ``n_bytes``.
        n_reallocations: In how many calls.
        cause: A :class:`FlushCause`.
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
        """How many segments each gave back. Shape ``(f,)``."""
        return np.asarray(self.last - self.first + 1)


def cache_flushes(snapshot: MemorySnapshot, replay: DeviceReplay) -> Flushes:
    """Find every run of frees of segments.

    Args:
        replay: The history of one device.
    """
    history, rows = snapshot.history, replay.rows
    action, n_bytes, stack = history.action[rows], history.n_bytes[rows], history.stack[rows]
    frees = np.flatnonzero(np.isin(action, _FREES))
    asks = np.flatnonzero(np.isin(action, _ASKS))
    apart = np.diff(frees) > 1
    starts = np.flatnonzero(np.concatenate(([True], apart))) if len(frees) else frees
    first = frees[starts]
    last = frees[np.append(starts[1:], len(frees)) - 1] if len(frees) else frees
    asked_from = np.searchsorted(asks, last)
    asked_to = np.searchsorted(asks, np.append(first[1:], len(rows))) if len(first) else asked_from
    given = _sum_between(n_bytes[frees], starts, np.append(starts[1:], len(frees))[: len(first)])
    return Flushes(
        first=first,
        last=last,
        n_bytes=given,
        reallocated_bytes=np.minimum(_sum_between(n_bytes[asks], asked_from, asked_to), given),
        n_reallocations=asked_to - asked_from,
        cause=_causes(
            action, stack, first, last, _emptying(snapshot.stacks), is_old=_is_old(snapshot)
        ),
        stack=stack[first],
    )


def _sum_between(values: Int64s, start: Rows, end: Rows) -> Int64s:
    total = np.concatenate(([0], np.cumsum(values)))
    return np.asarray(total[end] - total[start])


def _is_old(snapshot: MemorySnapshot) -> bool:
    """Whether the history is of before torch 2.1, which kept no times."""
    times = snapshot.history.time_us
    return bool(len(times)) and int(times[0]) == MISSING


def _emptying(stacks: Stacks) -> Mask:
    """Stacks in which the cache is emptied on purpose. Shape ``(k,)``."""
    telling = np.fromiter(
        (any(word in frame.function for word in _EMPTIES) for frame in stacks.frames),
        np.bool_,
        len(stacks.frames),
    )
    found = np.zeros(len(stacks), dtype=np.bool_)
    of_stack = np.repeat(np.arange(len(stacks)), np.diff(stacks.start))
    found[of_stack[telling[stacks.frame]]] = True
    return found


def _causes(
    action: UInt8s, stack: Int32s, first: Rows, last: Rows, emptying: Mask, *, is_old: bool
) -> Int32s:
    """What made each run happen.

    Before it gives memory back for want of room, the allocator records nothing of the request; so
    the run stands right before the request's own entry, of the same stack where stacks are kept.
    Since torch 2.1, which also keeps times, a run without a stack before a request that has one is
    not for its sake: ``context="alloc"`` keeps the stacks of requests and not that of
    ``empty_cache``. Before, no run has a stack. There, as where no stacks are kept at all, one
    right after an allocation is hardly of ``empty_cache``, since a program frees before it empties;
    and where there is such a one, the others before requests are taken to be like it.
    """
    following = np.minimum(last + 1, len(action) - 1)
    makes_room = (last + 1 < len(action)) & np.isin(action[following], _MAKES_ROOM)
    own = stack[first]
    known = own != NO_STACK
    before = np.maximum(first - 1, 0)
    after_a_take = (first > 0) & np.isin(action[before], _TAKES)
    found = np.full(len(first), int(FlushCause.UNKNOWN), dtype=np.int32)
    found[makes_room & known & (stack[following] == own)] = FlushCause.RETRY
    guessed = makes_room & ~known & (is_old | (stack[following] == NO_STACK))
    if (guessed & after_a_take).any():
        found[guessed] = FlushCause.RETRY
    if len(emptying):
        found[known & emptying[np.where(known, own, 0)]] = FlushCause.EMPTY_CACHE
    return found
