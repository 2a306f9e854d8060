"""When each block of a device was live: those of its history, and those live at its end."""

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.snapshot.allocation_use import makes_optimizer_state, use_of_blocks, uses
from profkit.index.snapshot.replay import DeviceReplay
from profkit.index.snapshot.stack_lines import NO_LINE, StackLines
from profkit.model.events import NO_ROW, Int32s, Int64s, Mask, Rows
from profkit.model.snapshot import NO_STACK, MemorySnapshot, UInt8s


@dataclass(frozen=True)
class BlockLifetimes:
    """All blocks of a device, in no particular order.

    Attributes:
        begin: First index in the history at which the block is live; 0 for one that was allocated
            before it. Shape ``(b,)``.
        end: First later index at which it is not; one after the last index for a block that is live
            at the end.
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
        """Blocks without a line that were allocated before the history."""
        return np.asarray((self.line == NO_LINE) & (self.begin == 0))

    def live_at(self, place: int) -> Mask:
        """Which blocks are live before an entry of the history, or at its end."""
        return np.asarray((self.begin <= place) & (self.end > place))


def block_lifetimes(
    snapshot: MemorySnapshot, replay: DeviceReplay, lines: StackLines
) -> BlockLifetimes:
    """All blocks of a device's history, and those that are live at its end."""
    history, blocks = snapshot.history, snapshot.blocks
    row, since = replay.block, replay.since
    ended = replay.free != NO_ROW
    freed, earlier = replay.rows[replay.alloc[ended]], replay.rows[replay.earlier_frees]
    never = np.full(len(row), replay.end + 1)
    end = np.concatenate((never, replay.free[ended] + 1, replay.earlier_frees + 1))
    # Of a block from before the history only the free is known, with the stack of the free.
    unknown = np.full(len(earlier), NO_STACK, dtype=np.int32)
    stack = np.concatenate((blocks.stack[row], history.stack[freed], unknown))
    return BlockLifetimes(
        begin=np.concatenate((since + 1, replay.alloc[ended] + 1, np.zeros(len(earlier), np.intp))),
        end=end,
        n_bytes=np.concatenate(
            (blocks.n_bytes[row], history.n_bytes[freed], history.n_bytes[earlier])
        ),
        stack=stack,
        line=lines.of(stack),
        use=use_of_blocks(
            stack, end <= replay.end, uses(lines.stacks), makes_optimizer_state(lines.stacks)
        ),
    )
