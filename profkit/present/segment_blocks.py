"""The segments of a device at the end of a snapshot, with the blocks in them."""

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.snapshot.allocation_use import find_block_uses
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.index.sums import sum_by_key
from profkit.model.events import NO_ROW, Int32s, Int64s, Mask
from profkit.model.memory_series import Clock
from profkit.model.snapshot import UInt8s
from profkit.present.memory_series import clock_of


@dataclass(frozen=True)
class SegmentBlocks:
    """Segments by address, and their blocks by segment and address.

    Attributes:
        segment_bytes: Shape ``(s,)``.
        n_blocks: Number of blocks of each segment. Shape ``(s,)``.
        stream: Number of the stream that each serves, from 0 in the order of the streams' ids.
        is_small: Whether it serves requests up to 1 MiB.
        is_private: Whether it belongs to a private pool.
        gap_bytes: Bytes of the segment before each block that are in no block. Shape ``(b,)``.
        n_bytes: Shape ``(b,)``.
        state: A :class:`~profkit.model.snapshot.State` value.
        line: Source line of the allocation, as in
            :class:`~profkit.index.snapshot.stack_lines.StackLines`.
        use: A number of :data:`~profkit.index.snapshot.allocation_use.USES`.
        at: Time of the allocation on ``clock`` if it is in the history, else
            :data:`~profkit.model.events.NO_ROW`.
        until: Time of the end of the history.
    """

    device: str
    segment_bytes: Int64s
    n_blocks: Int64s
    stream: Int64s
    is_small: Mask
    is_private: Mask
    gap_bytes: Int64s
    n_bytes: Int64s
    state: UInt8s
    line: Int32s
    use: UInt8s
    at: Int64s
    clock: Clock
    until: int


def find_segment_blocks(memory: DeviceMemory) -> SegmentBlocks:
    """Find the segments of a device, with their blocks."""
    segments, blocks = memory.snapshot.segments, memory.snapshot.blocks
    segment_rows = np.flatnonzero(segments.device == memory.replay.device)
    segment_rows = segment_rows[np.argsort(segments.address[segment_rows], kind="stable")]
    rank = np.full(len(segments), NO_ROW, dtype=np.int64)
    rank[segment_rows] = np.arange(len(segment_rows))

    of_block = rank[blocks.segment]
    row = np.flatnonzero(of_block != NO_ROW)
    row = row[np.lexsort((blocks.address[row], of_block[row]))]
    of_block, n_bytes = of_block[row], blocks.n_bytes[row]

    # A gap is between the end of the block before, or the segment's start, and the block.
    begin = blocks.address[row] - segments.address[segment_rows][of_block]
    end_before = np.zeros(len(row), dtype=np.int64)
    same = of_block[1:] == of_block[:-1]
    end_before[1:][same] = (begin + n_bytes)[:-1][same]
    gap = begin - end_before
    # Blocks that overlap or exceed their segment are drawn next to each other.
    gap[(gap < 0) | (begin + n_bytes > segments.total_bytes[segment_rows][of_block])] = 0
    in_blocks = sum_by_key(len(segment_rows), of_block, gap + n_bytes)

    times, clock = clock_of(memory)
    at = np.full(len(blocks), NO_ROW, dtype=np.int64)
    since = memory.replay.since
    at[memory.replay.block[since != NO_ROW]] = times[since[since != NO_ROW] + 1]
    stack, stacks = blocks.stack[row], memory.lines.stacks
    never_freed = np.zeros(len(row), dtype=np.bool_)

    return SegmentBlocks(
        device=memory.label,
        segment_bytes=np.maximum(segments.total_bytes[segment_rows], in_blocks),
        n_blocks=np.bincount(of_block, minlength=len(segment_rows)),
        stream=np.unique(segments.stream[segment_rows], return_inverse=True)[1],
        is_small=~segments.is_large[segment_rows],
        is_private=segments.pool[segment_rows] != 0,
        gap_bytes=gap,
        n_bytes=n_bytes,
        state=blocks.state[row],
        line=memory.lines.of(stack),
        use=find_block_uses(stacks, stack, never_freed, at[row] != NO_ROW),
        at=at[row],
        clock=clock,
        until=int(times[-1]),
    )
