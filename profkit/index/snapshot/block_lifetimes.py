"""When each block of a device was live: blocks of its history, and blocks live at its end."""

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.snapshot.allocation_use import find_block_uses
from profkit.index.snapshot.replay import DeviceReplay
from profkit.index.snapshot.stack_lines import NO_LINE, StackLines
from profkit.model.events import NO_ROW, Int32s, Int64s, Mask, Rows
from profkit.model.snapshot import NO_STACK, MemorySnapshot, UInt8s


@dataclass(frozen=True)
class BlockLifetimes:
    """All blocks of a device, in no particular order.

    Attributes:
        begin: First index in the history at which the block is live, 0 if it was allocated before.
            Shape ``(b,)``.
        end: First later index at which it is not live, or one after the last index if it is live at
            the end.
        n_bytes: Its size, as in :class:`~profkit.index.snapshot.live_blocks.LiveBlocks`.
        stack: Stack of the allocation, or :data:`~profkit.model.snapshot.NO_STACK`.
        line: Its source line, or :data:`~profkit.index.snapshot.stack_lines.NO_LINE`.
        use: A number of :data:`~profkit.index.snapshot.allocation_use.USES`.
    """

    begin: Rows
    end: Rows
    n_bytes: Int64s
    stack: Int32s
    line: Int32s
    use: UInt8s

    @property
    def is_before_recording(self) -> Mask:
        """Return which blocks without a line were allocated before the history."""
        return np.asarray((self.line == NO_LINE) & (self.begin == 0))

    def live_at(self, place: int) -> Mask:
        """Return which blocks are live before an entry of the history, or at its end."""
        return np.asarray((self.begin <= place) & (self.end > place))


def find_block_lifetimes(
    snapshot: MemorySnapshot, replay: DeviceReplay, lines: StackLines
) -> BlockLifetimes:
    """Find all blocks of a device's history, and all that are live at its end."""
    history, blocks = snapshot.history, snapshot.blocks
    row, since = replay.block, replay.since
    is_freed = replay.free != NO_ROW
    freed, earlier = replay.rows[replay.alloc[is_freed]], replay.rows[replay.earlier_frees]

    never = np.full(len(row), replay.end + 1)
    end = np.concatenate((never, replay.free[is_freed] + 1, replay.earlier_frees + 1))

    # Only the free of a block from before the history is known, with the stack of the free.
    unknown = np.full(len(earlier), NO_STACK, dtype=np.int32)
    stack = np.concatenate((blocks.stack[row], history.stack[freed], unknown))

    begin = np.concatenate((since + 1, replay.alloc[is_freed] + 1, np.zeros(len(earlier), np.intp)))

    return BlockLifetimes(
        begin=begin,
        end=end,
        n_bytes=np.concatenate(
            (blocks.n_bytes[row], history.n_bytes[freed], history.n_bytes[earlier])
        ),
        stack=stack,
        line=lines.of(stack),
        use=find_block_uses(lines.stacks, stack, end <= replay.end, begin > 0),
    )
