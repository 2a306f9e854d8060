"""Which lines hold free memory in place: the live blocks beside it."""

from dataclasses import dataclass

import numpy as np

from profkit.index.snapshot.segment_map import SegmentMap
from profkit.index.snapshot.stack_lines import StackLines
from profkit.model.events import Int32s, Int64s


@dataclass(frozen=True)
class FragmentationSites:
    """Live blocks with free memory beside them, by line, the most such memory first.

    Attributes:
        line: The telling line, or :data:`~profkit.index.snapshot.stack_lines.NO_LINE`. Shape ``(p,)``.
        n: Blocks.
        n_bytes: Their lengths together.
        unreleasable_bytes: The free memory, as :attr:`SegmentMap.pinned_by_block` shares it out.
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
    pinned = layout.pinned_by_block
    holds = np.flatnonzero(pinned > 0)
    line, group = np.unique(lines.of(layout.block_stack[holds]), return_inverse=True)
    n_bytes, unreleasable_bytes = np.zeros((2, len(line)), dtype=np.int64)
    np.add.at(n_bytes, group, layout.block_bytes[holds])
    np.add.at(unreleasable_bytes, group, pinned[holds])
    order = np.argsort(-unreleasable_bytes, kind="stable")
    n = np.bincount(group, minlength=len(line))
    return FragmentationSites(line[order], n[order], n_bytes[order], unreleasable_bytes[order])
