"""What stands at one moment of a snapshot's history, and which line holds how much of it."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from profkit.index.snapshot.allocation_use import makes_optimizer_state, use_of_blocks, uses
from profkit.index.snapshot.allocator.sizes import OWN_SEGMENT_BYTES, SMALL_BYTES
from profkit.index.snapshot.replay import DeviceReplay
from profkit.index.snapshot.stack_lines import NO_LINE, StackLines
from profkit.model.events import NO_ROW, Int32s, Int64s, Mask, Rows
from profkit.model.snapshot import NO_STACK, MemorySnapshot, UInt8s

SIZE_CLASSES: Final = ("small", "medium", "large")
"""Up to 1 MiB blocks share segments of 2 MiB, below 10 MiB such of 20 MiB, and from there on each
has its own.
"""


@dataclass(frozen=True)
class LiveBlocks:
    """Blocks that stand at one moment, in no order.

    Attributes:
        address: Where each begins. Shape ``(b,)``.
        n_bytes: Its length; of one that is freed later what the history says of it, which is what
            was asked for before rounding.
        stream: The stream that it serves.
        stack: Stack that allocated it, or :data:`~profkit.model.snapshot.NO_STACK`.
        is_before_recording: Whether it was allocated before the first entry of the history.
        is_freed: Whether it is freed later.
    """

    address: Int64s
    n_bytes: Int64s
    stream: Int64s
    stack: Int32s
    is_before_recording: Mask
    is_freed: Mask

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True)
class LiveBlockSites:
    """Standing blocks by line and use, the most bytes first.

    Attributes:
        line: The telling line, a place in the snapshot's frames, or
            :data:`~profkit.index.snapshot.stack_lines.NO_LINE`. Shape ``(s,)``.
        use: A number of :data:`~profkit.index.snapshot.allocation_use.USES`.
        is_before_recording: Whether they were allocated before the first entry; told apart only where there
            is no line.
        stack: Of its stacks the one with the most bytes.
        n: Blocks.
        n_bytes: Their lengths together.
        size_class: A number of :data:`SIZE_CLASSES`: the one of most of its bytes.
        of_block: For each block its site. Shape ``(b,)``.
    """

    line: Int32s
    use: UInt8s
    is_before_recording: Mask
    stack: Int32s
    n: Int64s
    n_bytes: Int64s
    size_class: UInt8s
    of_block: Rows

    def __len__(self) -> int:
        return len(self.line)


def live_blocks_at(snapshot: MemorySnapshot, replay: DeviceReplay, place: int) -> LiveBlocks:
    """What stands before one row of a device's history, or in the end.

    Args:
        replay: The history of one device.
        place: A place as in :attr:`DeviceReplay.active_bytes`.
    """
    blocks, history = snapshot.blocks, snapshot.history
    row, since = replay.block[replay.since < place], replay.since[replay.since < place]
    passing = replay.alloc[(replay.alloc < place) & (replay.free >= place)]
    events = replay.rows[passing]
    # Of a block from before the window only its end was kept, and the stack of that frees it.
    unseen = replay.rows[replay.earlier_frees[replay.earlier_frees >= place]]
    n, n_passing, n_unseen = len(row), len(events), len(unseen)
    return LiveBlocks(
        address=np.concatenate(
            (blocks.address[row], history.address[events], history.address[unseen])
        ),
        n_bytes=np.concatenate(
            (blocks.n_bytes[row], history.n_bytes[events], history.n_bytes[unseen])
        ),
        stream=np.concatenate(
            (
                snapshot.segments.stream[blocks.segment[row]],
                history.stream[events],
                history.stream[unseen],
            )
        ),
        stack=np.concatenate(
            (blocks.stack[row], history.stack[events], np.full(n_unseen, NO_STACK, dtype=np.int32))
        ),
        is_before_recording=np.concatenate(
            # Without a history there is nothing that they could come before.
            (
                (since == NO_ROW) & (replay.end > 0),
                np.zeros(n_passing, np.bool_),
                np.ones(n_unseen, np.bool_),
            )
        ),
        is_freed=np.concatenate((np.zeros(n, np.bool_), np.ones(n_passing + n_unseen, np.bool_))),
    )


def group_by_site(standing: LiveBlocks, lines: StackLines) -> LiveBlockSites:
    """Group standing blocks by the telling line of their stacks and by what they are used for.

    Args:
        standing: The blocks.
        lines: The lines of the snapshot's stacks.
    """
    line = lines.of(standing.stack)
    use = use_of_blocks(
        standing.stack, standing.is_freed, uses(lines.stacks), makes_optimizer_state(lines.stacks)
    )
    apart = standing.is_before_recording & (line == NO_LINE)
    key = ((line.astype(np.int64) + 1) * 16 + use) * 2 + apart
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    n_bytes = _sums(group, standing.n_bytes, len(first))
    order = np.lexsort((first, -n_bytes))
    rank = np.empty(len(order), dtype=np.intp)
    rank[order] = np.arange(len(order))
    size = np.searchsorted([SMALL_BYTES + 1, OWN_SEGMENT_BYTES], standing.n_bytes, side="right")
    by_size = _sums(group * 3 + size, standing.n_bytes, len(first) * 3).reshape(-1, 3)
    return LiveBlockSites(
        line=line[first][order],
        use=use[first][order],
        is_before_recording=standing.is_before_recording[first][order],
        stack=_heaviest(group, standing)[order],
        n=np.bincount(group, minlength=len(first))[order],
        n_bytes=n_bytes[order],
        size_class=by_size.argmax(axis=1).astype(np.uint8)[order],
        of_block=rank[group],
    )


def _heaviest(group: Rows, standing: LiveBlocks) -> Int32s:
    """Of each group the stack with the most bytes. Shape ``(s,)``."""
    pair = group.astype(np.int64) * (int(standing.stack.max(initial=0)) + 2) + standing.stack + 1
    _, first, number = np.unique(pair, return_index=True, return_inverse=True)
    order = np.lexsort((_sums(number, standing.n_bytes, len(first)), group[first]))
    last = np.ones(len(order), dtype=np.bool_)
    last[:-1] = np.diff(group[first][order]) > 0
    return np.asarray(standing.stack[first[order[last]]])


def _sums(group: Rows, n_bytes: Int64s, n: int) -> Int64s:
    """Sums of bytes by group, exact where floats would round. Shape ``(n,)``."""
    found = np.zeros(n, dtype=np.int64)
    np.add.at(found, group, n_bytes)
    return found


def bytes_over_time(
    group: Rows, n_bytes: Int64s, begin: Rows, end: Rows, moments: Rows, n_groups: int
) -> Int64s:
    """The bytes of each group's blocks that stand at each moment. Shape ``(n_groups, k)``.

    Args:
        group: The group of each block. Shape ``(b,)``.
        n_bytes: Its length.
        begin: The first place at which it stands.
        end: The first place after it at which it does not.
        moments: Places, ascending. Shape ``(k,)``.
        n_groups: How many groups there are.
    """
    width = len(moments) + 1
    change = np.zeros(n_groups * width, dtype=np.int64)
    np.add.at(change, group * width + np.searchsorted(moments, begin), n_bytes)
    np.subtract.at(change, group * width + np.searchsorted(moments, end), n_bytes)
    return np.asarray(np.cumsum(change.reshape(n_groups, width), axis=1)[:, :-1])


def representative_places(level: Int64s, n: int) -> Rows:
    """Places of a level that keep its look: the highest of each of ``n`` stretches, and both ends.

    Args:
        level: The level at each place. Shape ``(p,)``, not empty.
        n: How many stretches.

    Returns:
        Places, ascending, each once. Shape ``(k,)``, ``k`` at most ``n + 2``.
    """
    last = len(level) - 1
    if len(level) <= n:
        return np.arange(len(level))
    bounds = np.linspace(0, len(level), n + 1).astype(np.intp)
    inside = [a + int(level[a:b].argmax()) for a, b in pairwise(bounds.tolist())]
    return np.unique(np.array([0, *inside, last], dtype=np.intp))
