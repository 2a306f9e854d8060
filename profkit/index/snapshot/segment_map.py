"""The position of blocks and free memory in an allocator's segments.

Only completely free segments can be returned to the driver. In other segments live blocks prevent
the release of free memory, since tensors never move.
"""

from functools import cached_property
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.columns import build_empty
from profkit.index.snapshot.allocator.settings import BLOCK_BYTES, SMALL_SEGMENT_BYTES
from profkit.index.snapshot.live_blocks import find_live_blocks
from profkit.index.snapshot.replay import DeviceReplay, is_private, pair_by_address, sort_segments
from profkit.index.snapshot.stack_lines import StackLines
from profkit.index.sums import sum_by_key
from profkit.model.events import NO_ROW, Int32s, Int64s, Mask, Rows
from profkit.model.snapshot import Action, MemorySnapshot, State

_MAPS: Final = (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)
_OF_SEGMENTS: Final = (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, *_MAPS)


@dataclass(frozen=True)
class SegmentMap:
    """One device's segments, live blocks and free blocks at one moment, each by address.

    Attributes:
        segment_address: Start of each segment. Shape ``(s,)``.
        segment_stream: The stream that it serves.
        is_small: Whether it serves requests up to 1 MiB.
        is_private: Whether it belongs to a private pool.
        block_address: Start of each live block. Shape ``(b,)``.
        block_stack: Stack of its allocation.
        free_address: Start of each free block. Shape ``(h,)``.
    """

    segment_address: Int64s
    segment_bytes: Int64s
    segment_stream: Int64s
    is_small: Mask
    is_private: Mask
    block_address: Int64s
    block_bytes: Int64s
    block_stack: Int32s
    free_address: Int64s
    free_bytes: Int64s

    @cached_property
    def free_segment(self) -> Rows:
        """Return the segment of each free block. Shape ``(h,)``."""
        return self._segment_of(self.free_address)

    @cached_property
    def is_unreleasable(self) -> Mask:
        """Return which free blocks are in segments with a live block. Shape ``(h,)``."""
        is_used = np.zeros(len(self.segment_address), dtype=np.bool_)
        is_used[self._segment_of(self.block_address)] = True
        return np.asarray(is_used[self.free_segment] & ~self.is_private[self.free_segment])

    @property
    def releasable_bytes(self) -> int:
        """Return the bytes that ``empty_cache`` would return to the driver."""
        is_releasable = ~self.is_unreleasable & ~self.is_private[self.free_segment]
        return int(self.free_bytes[is_releasable].sum())

    @property
    def unreleasable_bytes(self) -> int:
        """Return the free bytes that live blocks in the same segment keep from being released.

        Free memory of private pools does not count: CUDA graphs write to it again.
        """
        return int(self.free_bytes[self.is_unreleasable].sum())

    def largest_usable_block_bytes(self, stream: int, *, is_small: bool) -> int:
        """Return the size of the largest free block for requests of a stream and size class."""
        segment = self.free_segment
        fits = (self.segment_stream[segment] == stream) & (self.is_small[segment] == is_small)
        return int(self.free_bytes[fits].max(initial=0))

    @cached_property
    def unreleasable_by_block(self) -> Int64s:
        """Attribute the unreleasable bytes to live blocks. Shape ``(b,)``.

        A free block between two live blocks counts half for each. At an end of a segment it counts
        entirely for its only neighbor. So the bytes add up to :attr:`unreleasable_bytes`.
        """
        attributed = np.zeros(len(self.block_address), dtype=np.int64)
        rows = np.flatnonzero(self.is_unreleasable)
        if not len(rows):
            return attributed

        segment = self.free_segment[rows]
        segment_of_block = self._segment_of(self.block_address)

        after = np.searchsorted(self.block_address, self.free_address[rows])
        last = len(self.block_address) - 1
        left, right = after - 1, np.minimum(after, last)
        has_left = (left >= 0) & (segment_of_block[np.maximum(left, 0)] == segment)
        has_right = (after <= last) & (segment_of_block[right] == segment)

        size = self.free_bytes[rows]
        # The left neighbour gets the rounded half, the right one the remainder.
        half = np.where(has_left & has_right, size // 2, size)
        np.add.at(attributed, left[has_left], half[has_left])
        other_half = np.where(has_left, size - half, size)
        np.add.at(attributed, right[has_right], other_half[has_right])
        return attributed

    def _segment_of(self, address: Int64s) -> Rows:
        place = np.searchsorted(self.segment_address, address, side="right") - 1
        return np.asarray(np.maximum(place, 0), dtype=np.intp)


NO_SEGMENTS: Final = build_empty(SegmentMap)


def build_final_segment_map(snapshot: MemorySnapshot, device: int) -> SegmentMap:
    """Build the segment map of the snapshot itself."""
    segments, blocks = snapshot.segments, snapshot.blocks
    segment_rows = sort_segments(snapshot, device)
    block_rows = np.flatnonzero(segments.device[blocks.segment] == device)
    block_rows = block_rows[np.argsort(blocks.address[block_rows], kind="stable")]

    inactive = block_rows[blocks.state[block_rows] == State.INACTIVE]
    live = block_rows[blocks.state[block_rows] != State.INACTIVE]

    return SegmentMap(
        segment_address=segments.address[segment_rows],
        segment_bytes=segments.total_bytes[segment_rows],
        segment_stream=segments.stream[segment_rows],
        is_small=~segments.is_large[segment_rows],
        is_private=segments.pool[segment_rows] != 0,
        block_address=blocks.address[live],
        block_bytes=blocks.n_bytes[live],
        block_stack=blocks.stack[live],
        free_address=blocks.address[inactive],
        free_bytes=blocks.n_bytes[inactive],
    )


def build_segment_map_at(
    snapshot: MemorySnapshot, replay: DeviceReplay, place: int
) -> SegmentMap | None:
    """Build the segment map before one entry of a device's history, or at the end.

    For blocks that were freed since, the history has the requested size, which is rounded up here.
    So a free block may be too long by the unsplit rest of a large block.

    Returns:
        None where expandable segments grew or shrank since: only their final ranges are known.
    """
    later = snapshot.history.action[replay.rows[place:]]
    has_changes = any(
        (places >= place).any() for places in (replay.alloc, replay.free, replay.earlier_frees)
    )
    if not has_changes and not np.isin(later, _OF_SEGMENTS).any():
        return build_final_segment_map(snapshot, replay.device)
    if np.isin(later, _MAPS).any():
        return None

    address, n_bytes, stream, is_small = _find_segments(snapshot, replay, place)
    if not len(address):
        # Without segments there are no blocks, whatever an inconsistent history says.
        return NO_SEGMENTS

    live = find_live_blocks(snapshot, replay, place)
    order = np.argsort(live.address, kind="stable")
    begins, lengths = live.address[order], live.n_bytes[order]
    lengths = -(-lengths // BLOCK_BYTES) * BLOCK_BYTES

    # Free memory lies between begins of segments or ends of blocks, and begins of blocks or ends
    # of segments, both in ascending order.
    opens = np.sort(np.concatenate((address, begins + lengths)))
    closes = np.sort(np.concatenate((begins, address + n_bytes)))
    is_free = closes > opens
    return SegmentMap(
        segment_address=address,
        segment_bytes=n_bytes,
        segment_stream=stream,
        is_small=is_small,
        is_private=is_private(snapshot, replay.device, address),
        block_address=begins,
        block_bytes=lengths,
        block_stack=live.stack[order],
        free_address=opens[is_free],
        free_bytes=(closes - opens)[is_free],
    )


def _find_segments(
    snapshot: MemorySnapshot, replay: DeviceReplay, place: int
) -> tuple[Int64s, Int64s, Int64s, Mask]:
    """Find address, size, stream and kind of the segments before an entry, by address."""
    segments, history = snapshot.segments, snapshot.history
    rows = replay.rows
    pairs = pair_by_address(
        history.address[rows], history.action[rows], Action.SEGMENT_ALLOC, Action.SEGMENT_FREE
    )

    rows_by_address = sort_segments(snapshot, replay.device)

    # The allocation of each segment that still exists.
    since = np.full(len(rows_by_address), NO_ROW, dtype=np.intp)
    live = pairs.begin[pairs.end == NO_ROW]
    at = np.searchsorted(segments.address[rows_by_address], history.address[rows[live]])
    live, at = live[at < len(rows_by_address)], at[at < len(rows_by_address)]
    is_match = segments.address[rows_by_address[at]] == history.address[rows[live]]
    since[at[is_match]] = live[is_match]

    existing = rows_by_address[since < place]
    freed_later = pairs.begin[(pairs.begin < place) & (pairs.end >= place)]
    later_freed = rows[
        np.concatenate((freed_later, pairs.earlier_ends[pairs.earlier_ends >= place]))
    ]

    address = np.concatenate((segments.address[existing], history.address[later_freed]))
    order = np.argsort(address, kind="stable")
    is_small = (~segments.is_large[existing], history.n_bytes[later_freed] == SMALL_SEGMENT_BYTES)
    return (
        address[order],
        np.concatenate((segments.total_bytes[existing], history.n_bytes[later_freed]))[order],
        np.concatenate((segments.stream[existing], history.stream[later_freed]))[order],
        np.concatenate(is_small)[order],
    )


@dataclass(frozen=True)
class FragmentationSites:
    """Live blocks next to unreleasable free memory, by source line, most such bytes first.

    Attributes:
        line: The source line, or :data:`~profkit.index.snapshot.stack_lines.NO_LINE`.
            Shape ``(p,)``.
        unreleasable_bytes: See :attr:`SegmentMap.unreleasable_by_block`.
    """

    line: Int32s
    n: Int64s
    n_bytes: Int64s
    unreleasable_bytes: Int64s

    def __len__(self) -> int:
        return len(self.line)


def find_fragmentation_sites(segments: SegmentMap, lines: StackLines) -> FragmentationSites:
    """Group the blocks that keep free memory from being released by source line."""
    unreleasable = segments.unreleasable_by_block
    blocks = np.flatnonzero(unreleasable > 0)
    line, group = np.unique(lines.of(segments.block_stack[blocks]), return_inverse=True)

    n_bytes = sum_by_key(len(line), group, segments.block_bytes[blocks])
    unreleasable_bytes = sum_by_key(len(line), group, unreleasable[blocks])

    order = np.argsort(-unreleasable_bytes, kind="stable")
    n = np.bincount(group, minlength=len(line))
    return FragmentationSites(line[order], n[order], n_bytes[order], unreleasable_bytes[order])
