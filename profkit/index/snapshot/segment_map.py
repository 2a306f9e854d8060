"""Where blocks lie in the memory that an allocator has from the driver, and what is free between.

A free block in a segment that is wholly free can be given back to the driver. All others are held
in place by the live blocks around them: nothing moves a tensor.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from profkit.index.snapshot.allocator.sizes import BLOCK_BYTES, SMALL_SEGMENT_BYTES
from profkit.index.snapshot.live_blocks import live_blocks_at
from profkit.index.snapshot.replay import DeviceReplay, is_private, paired
from profkit.index.snapshot.stack_lines import StackLines
from profkit.model.events import NO_ROW, Int32s, Int64s, Mask, Rows
from profkit.model.snapshot import Action, MemorySnapshot, State

_MAPS = (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)
_OF_SEGMENTS = (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, *_MAPS)


@dataclass(frozen=True)
class SegmentMap:
    """One device's memory at one moment; segments, blocks and holes each by address.

    Attributes:
        segment_address: Where each segment begins. Shape ``(s,)``.
        segment_bytes: Its length.
        segment_stream: The stream that it serves.
        is_small: Whether it serves requests up to 1 MiB.
        is_private: Whether it is of a private pool.
        block_address: Where each live block begins. Shape ``(b,)``.
        block_bytes: Its length.
        block_stack: Stack that allocated it.
        free_address: Where each free block begins. Shape ``(h,)``.
        free_bytes: Its length.
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
        """The segment of each hole. Shape ``(h,)``."""
        return self._segment_of(self.free_address)

    @cached_property
    def is_unreleasable(self) -> Mask:
        """Holes in segments that have a live block. ``(h,)``."""
        is_used = np.zeros(len(self.segment_address), dtype=np.bool_)
        is_used[self._segment_of(self.block_address)] = True
        return np.asarray(is_used[self.free_segment] & ~self.is_private[self.free_segment])

    @cached_property
    def is_releasable(self) -> Mask:
        """Holes in segments without one, private pools aside: they can be given back. ``(h,)``."""
        return np.asarray(~self.is_unreleasable & ~self.is_private[self.free_segment])

    @property
    def releasable_bytes(self) -> int:
        """What an emptied cache would give back to the driver."""
        return int(self.free_bytes[self.is_releasable].sum())

    @property
    def unreleasable_bytes(self) -> int:
        """What is free and cannot be given back, for the live blocks in the same segment.

        What is free in private pools is neither: it is kept for the graphs that write there.
        """
        return int(self.free_bytes[self.is_unreleasable].sum())

    def largest_usable_block_bytes(self, stream: int, *, is_small: bool) -> int:
        """The longest free block that a request of a stream could have.

        Args:
            is_small: Whether the request is of at most 1 MiB.
        """
        segment = self.free_segment
        fits = (self.segment_stream[segment] == stream) & (self.is_small[segment] == is_small)
        return int(self.free_bytes[fits].max(initial=0))

    @cached_property
    def unreleasable_by_block(self) -> Int64s:
        """Bytes of holes that each live block holds in place. Shape ``(b,)``.

        A hole between two live blocks counts half for each, one at the end of a segment wholly for
        its only neighbour; so all of them together are :attr:`unreleasable_bytes`.
        """
        pinned = np.zeros(len(self.block_address), dtype=np.int64)
        held = np.flatnonzero(self.is_unreleasable)
        if not len(held):
            return pinned
        segment = self.free_segment[held]
        of_block = self._segment_of(self.block_address)
        after = np.searchsorted(self.block_address, self.free_address[held])
        last = len(self.block_address) - 1
        left, right = after - 1, np.minimum(after, last)
        has_left = (left >= 0) & (of_block[np.maximum(left, 0)] == segment)
        has_right = (after <= last) & (of_block[right] == segment)
        size = self.free_bytes[held]
        half = np.where(has_left & has_right, size // 2, size)
        np.add.at(pinned, left[has_left], half[has_left])
        rest = np.where(has_left, size - half, size)
        np.add.at(pinned, right[has_right], rest[has_right])
        return pinned

    def _segment_of(self, address: Int64s) -> Rows:
        found = np.searchsorted(self.segment_address, address, side="right") - 1
        return np.asarray(np.maximum(found, 0), dtype=np.intp)


_NO_BYTES: Final = np.zeros(0, dtype=np.int64)
_NOTHING: Final = SegmentMap(
    segment_address=_NO_BYTES,
    segment_bytes=_NO_BYTES,
    segment_stream=_NO_BYTES,
    is_small=np.zeros(0, dtype=np.bool_),
    is_private=np.zeros(0, dtype=np.bool_),
    block_address=_NO_BYTES,
    block_bytes=_NO_BYTES,
    block_stack=np.zeros(0, dtype=np.int32),
    free_address=_NO_BYTES,
    free_bytes=_NO_BYTES,
)


def final_segment_map(snapshot: MemorySnapshot, device: int) -> SegmentMap:
    """The layout that the snapshot itself holds.

    Args:
        device: Ordinal of the device.
    """
    segments, blocks = snapshot.segments, snapshot.blocks
    here = np.flatnonzero(segments.device == device)
    here = here[np.argsort(segments.address[here], kind="stable")]
    row = np.flatnonzero(segments.device[blocks.segment] == device)
    row = row[np.argsort(blocks.address[row], kind="stable")]
    hole = row[blocks.state[row] == State.INACTIVE]
    live = row[blocks.state[row] != State.INACTIVE]
    return SegmentMap(
        segment_address=segments.address[here],
        segment_bytes=segments.total_bytes[here],
        segment_stream=segments.stream[here],
        is_small=~segments.is_large[here],
        is_private=segments.pool[here] != 0,
        block_address=blocks.address[live],
        block_bytes=blocks.n_bytes[live],
        block_stack=blocks.stack[live],
        free_address=blocks.address[hole],
        free_bytes=blocks.n_bytes[hole],
    )


def segment_map_at(snapshot: MemorySnapshot, replay: DeviceReplay, place: int) -> SegmentMap | None:
    """The layout before one row of a device's history.

    Of blocks that were freed since, the history tells what was asked for; what they took is that
    rounded up, so a hole may be too long by what a large block was given beyond its request.

    Args:
        replay: The history of the device.
        place: A place as in :attr:`DeviceReplay.active_bytes`.

    Returns:
        None where expandable segments grew or shrank since: of these only ends are known.
    """
    later = snapshot.history.action[replay.rows[place:]]
    moves = any(
        (places >= place).any() for places in (replay.alloc, replay.free, replay.earlier_frees)
    )
    if not moves and not np.isin(later, _OF_SEGMENTS).any():
        return final_segment_map(snapshot, replay.device)
    if np.isin(later, _MAPS).any():
        return None
    address, n_bytes, stream, is_small = _segments_at(snapshot, replay, place)
    if not len(address):
        # Nothing stands where nothing is reserved, whatever a broken history says.
        return _NOTHING
    standing = live_blocks_at(snapshot, replay, place)
    order = np.argsort(standing.address, kind="stable")
    begins, lengths = standing.address[order], standing.n_bytes[order]
    lengths = -(-lengths // BLOCK_BYTES) * BLOCK_BYTES
    # Between the begins of segments and ends of blocks, and the begins of blocks and ends of
    # segments, both in ascending order, lies what is free.
    opens = np.sort(np.concatenate((address, begins + lengths)))
    closes = np.sort(np.concatenate((begins, address + n_bytes)))
    real = closes > opens
    return SegmentMap(
        segment_address=address,
        segment_bytes=n_bytes,
        segment_stream=stream,
        is_small=is_small,
        is_private=is_private(snapshot, replay.device, address),
        block_address=begins,
        block_bytes=lengths,
        block_stack=standing.stack[order],
        free_address=opens[real],
        free_bytes=(closes - opens)[real],
    )


def _segments_at(
    snapshot: MemorySnapshot, replay: DeviceReplay, place: int
) -> tuple[Int64s, Int64s, Int64s, Mask]:
    """Address, length, stream and kind of the segments that stood before a row, by address."""
    segments, history = snapshot.segments, snapshot.history
    rows = replay.rows
    pairs = paired(
        history.address[rows], history.action[rows], Action.SEGMENT_ALLOC, Action.SEGMENT_FREE
    )
    here = np.flatnonzero(segments.device == replay.device)
    here = here[np.argsort(segments.address[here], kind="stable")]
    since = np.full(len(here), NO_ROW, dtype=np.intp)
    live = pairs.begin[pairs.end == NO_ROW]
    at = np.searchsorted(segments.address[here], history.address[rows[live]])
    live, at = live[at < len(here)], at[at < len(here)]
    hit = segments.address[here[at]] == history.address[rows[live]]
    since[at[hit]] = live[hit]
    own = here[since < place]
    passing = pairs.begin[(pairs.begin < place) & (pairs.end >= place)]
    gone = rows[np.concatenate((passing, pairs.earlier_ends[pairs.earlier_ends >= place]))]
    address = np.concatenate((segments.address[own], history.address[gone]))
    order = np.argsort(address, kind="stable")
    return (
        address[order],
        np.concatenate((segments.total_bytes[own], history.n_bytes[gone]))[order],
        np.concatenate((segments.stream[own], history.stream[gone]))[order],
        np.concatenate((~segments.is_large[own], history.n_bytes[gone] == SMALL_SEGMENT_BYTES))[
            order
        ],
    )


@dataclass(frozen=True)
class FragmentationSites:
    """Live blocks with free memory beside them, by line, the most such memory first.

    Attributes:
        line: The telling line, or :data:`~profkit.index.snapshot.stack_lines.NO_LINE`. Shape ``(p,)``.
        n: Blocks.
        n_bytes: Their lengths together.
        unreleasable_bytes: The free memory, as :attr:`SegmentMap.unreleasable_by_block` shares it out.
    """

    line: Int32s
    n: Int64s
    n_bytes: Int64s
    unreleasable_bytes: Int64s

    def __len__(self) -> int:
        return len(self.line)


def fragmentation_sites(layout: SegmentMap, lines: StackLines) -> FragmentationSites:
    """Group the blocks that hold free memory in place by their lines.

    Args:
        layout: Where everything lies.
        lines: The lines of the snapshot's stacks.
    """
    pinned = layout.unreleasable_by_block
    holds = np.flatnonzero(pinned > 0)
    line, group = np.unique(lines.of(layout.block_stack[holds]), return_inverse=True)
    n_bytes, unreleasable_bytes = np.zeros((2, len(line)), dtype=np.int64)
    np.add.at(n_bytes, group, layout.block_bytes[holds])
    np.add.at(unreleasable_bytes, group, pinned[holds])
    order = np.argsort(-unreleasable_bytes, kind="stable")
    n = np.bincount(group, minlength=len(line))
    return FragmentationSites(line[order], n[order], n_bytes[order], unreleasable_bytes[order])
