"""Live blocks at one moment of a snapshot's history, and the source lines that allocated them."""

from itertools import pairwise
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.distinct import distinct
from profkit.index.snapshot.allocation_use import find_block_uses
from profkit.index.snapshot.allocator.settings import OWN_SEGMENT_BYTES, SMALL_BYTES
from profkit.index.snapshot.replay import DeviceReplay
from profkit.index.snapshot.stack_lines import NO_LINE, StackLines
from profkit.index.sums import sum_by_key
from profkit.model.events import NO_ROW, Int32s, Int64s, Mask, Rows
from profkit.model.snapshot import NO_STACK, MemorySnapshot, UInt8s

SIZE_CLASSES: Final = ("small", "medium", "large")
"""Blocks up to 1 MiB share segments of 2 MiB, blocks below 10 MiB share segments of 20 MiB, and
larger blocks have their own."""


@dataclass(frozen=True)
class LiveBlocks:
    """Live blocks at one moment, in no particular order.

    Attributes:
        address: Start address. Shape ``(b,)``.
        n_bytes: Size, which is the requested size for a block that is freed later.
        stream: The stream that it serves.
        stack: Stack of the allocation, or :data:`~profkit.model.snapshot.NO_STACK`.
        is_before_recording: Whether it was allocated before the first entry of the history.
        is_recorded: Whether its allocation is in the history.
        is_freed: Whether it is freed later.
    """

    address: Int64s
    n_bytes: Int64s
    stream: Int64s
    stack: Int32s
    is_before_recording: Mask
    is_recorded: Mask
    is_freed: Mask

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True)
class LiveBlockSites:
    """Live blocks by source line and use, most bytes first.

    Attributes:
        line: The source line, an index into the snapshot's frames, or
            :data:`~profkit.index.snapshot.stack_lines.NO_LINE`. Shape ``(s,)``.
        use: A number of :data:`~profkit.index.snapshot.allocation_use.USES`.
        is_before_recording: Whether they were allocated before the history. Blocks without a line
            are split by it.
        stack: The stack with the most bytes.
        size_class: A number of :data:`SIZE_CLASSES`, of most of the bytes.
        of_block: Index of each block's site. Shape ``(b,)``.
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


def find_live_blocks(snapshot: MemorySnapshot, replay: DeviceReplay, place: int) -> LiveBlocks:
    """Find the live blocks before one entry of a device's history, or at the end."""
    blocks, history = snapshot.blocks, snapshot.history
    row, since = replay.block[replay.since < place], replay.since[replay.since < place]
    freed_later = replay.alloc[(replay.alloc < place) & (replay.free >= place)]
    freed_rows = replay.rows[freed_later]

    # Only the free of a block from before the history is known, with the stack of the free.
    earlier_rows = replay.rows[replay.earlier_frees[replay.earlier_frees >= place]]
    history_rows = np.concatenate((freed_rows, earlier_rows))
    stack = np.concatenate((blocks.stack[row], history.stack[history_rows]))
    stack[len(stack) - len(earlier_rows) :] = NO_STACK

    # Without a history no block is from before it, and none is known to be recorded.
    is_recorded = since != NO_ROW
    is_before = ~is_recorded & (replay.end > 0)
    is_freed_later = np.arange(len(history_rows)) < len(freed_rows)

    return LiveBlocks(
        address=np.concatenate((blocks.address[row], history.address[history_rows])),
        n_bytes=np.concatenate((blocks.n_bytes[row], history.n_bytes[history_rows])),
        stream=np.concatenate(
            (snapshot.segments.stream[blocks.segment[row]], history.stream[history_rows])
        ),
        stack=stack,
        is_before_recording=np.concatenate((is_before, ~is_freed_later)),
        is_recorded=np.concatenate((is_recorded, is_freed_later)),
        is_freed=np.arange(len(stack)) >= len(row),
    )


def group_by_site(live: LiveBlocks, lines: StackLines) -> LiveBlockSites:
    """Group live blocks by source line and use."""
    line = lines.of(live.stack)
    use = find_block_uses(lines.stacks, live.stack, live.is_freed, live.is_recorded)

    # Use and flag fit into the low bits of one key, which sorts faster than three columns.
    is_separate = live.is_before_recording & (line == NO_LINE)
    key = ((line.astype(np.int64) + 1) * 16 + use) * 2 + is_separate
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    n_bytes = sum_by_key(len(first), group, live.n_bytes)

    order = np.lexsort((first, -n_bytes))
    rank = np.empty(len(order), dtype=np.intp)
    rank[order] = np.arange(len(order))

    size = np.searchsorted([SMALL_BYTES + 1, OWN_SEGMENT_BYTES], live.n_bytes, side="right")
    by_size = sum_by_key(len(first) * 3, group * 3 + size, live.n_bytes).reshape(-1, 3)

    return LiveBlockSites(
        line=line[first][order],
        use=use[first][order],
        is_before_recording=live.is_before_recording[first][order],
        stack=_find_largest_stacks(group, live)[order],
        n=np.bincount(group, minlength=len(first))[order],
        n_bytes=n_bytes[order],
        size_class=by_size.argmax(axis=1).astype(np.uint8)[order],
        of_block=rank[group],
    )


def _find_largest_stacks(group: Rows, live: LiveBlocks) -> Int32s:
    """Find the stack with the most bytes of each group. Shape ``(s,)``."""
    pair = group.astype(np.int64) * (int(live.stack.max(initial=0)) + 2) + live.stack + 1
    _, first, number = np.unique(pair, return_index=True, return_inverse=True)
    order = np.lexsort((sum_by_key(len(first), number, live.n_bytes), group[first]))
    last = np.ones(len(order), dtype=np.bool_)
    last[:-1] = np.diff(group[first][order]) > 0
    return np.asarray(live.stack[first[order[last]]])


def bytes_over_time(
    group: Rows, n_bytes: Int64s, begin: Rows, end: Rows, moments: Rows, n_groups: int
) -> Int64s:
    """Return the live bytes of each group of blocks at each moment. Shape ``(n_groups, k)``.

    Args:
        group: Group of each block. Shape ``(b,)``.
        n_bytes: Shape ``(b,)``.
        begin: First index at which the block is live. Shape ``(b,)``.
        end: First later index at which it is not live. Shape ``(b,)``.
        moments: Indices, ascending. Shape ``(k,)``.
    """
    width = len(moments) + 1
    change = sum_by_key(n_groups * width, group * width + np.searchsorted(moments, begin), n_bytes)
    np.subtract.at(change, group * width + np.searchsorted(moments, end), n_bytes)
    return np.asarray(np.cumsum(change.reshape(n_groups, width), axis=1)[:, :-1])


def representative_places(level: Int64s, n: int) -> Rows:
    """Choose indices that preserve a curve's shape: the maxima of ``n`` bins, and both ends.

    Args:
        level: Not empty. Shape ``(p,)``.
        n: Number of bins.

    Returns:
        Indices, ascending. Shape ``(k,)``, ``k`` at most ``n + 2``.
    """
    last = len(level) - 1
    if len(level) <= n:
        return np.arange(len(level))

    bounds = np.linspace(0, len(level), n + 1).astype(np.intp)
    maxima = [a + int(level[a:b].argmax()) for a, b in pairwise(bounds.tolist())]
    return distinct(np.array([0, *maxima, last], dtype=np.intp))
