"""Paths of call trees and stacks as numbers: equal paths have equal numbers."""

from typing import Final

import numpy as np

from profkit.index.distinct import numbered
from profkit.index.host.nesting import CallTree
from profkit.model.events import NO_ROW, Int32s, Int64s, Mask
from profkit.model.snapshot import Stacks

TOP: Final = -1
"""The parent of root nodes."""


class Paths:
    """A growing tree of paths. A node is a parent node and a site."""

    def __init__(self) -> None:
        self._parents: list[Int64s] = []
        self._sites: list[Int64s] = []
        self._numbers: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def children(self, above: Int64s, site: Int64s) -> Int64s:
        """Return the child nodes of some nodes, adding the new ones.

        Args:
            above: Nodes, or :data:`TOP`. Shape ``(k,)``.
            site: Site of each child, 0 or more. Shape ``(k,)``.

        Returns:
            Nodes; parents have lower numbers than their children. Shape ``(k,)``.
        """
        width = int(site.max(initial=0)) + 1
        key, place = numbered((above + 1) * width + site)

        over, under = key // width - 1, key % width
        numbers = self._numbers
        nodes = np.fromiter(
            (
                numbers.setdefault(pair, len(numbers))
                for pair in zip(over.tolist(), under.tolist(), strict=True)
            ),
            np.int64,
            len(key),
        )
        return np.asarray(nodes[place])

    def columns(self) -> tuple[Int32s, Int32s]:
        """Return the parent and the site of every node. Parents precede their children."""
        pairs = np.array(list(self._numbers), dtype=np.int32).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]


def number_tree_paths(
    paths: Paths, tree: CallTree, top: Int64s, site: Int64s, restart: Int64s | None = None
) -> Int64s:
    """Number the path of every host row, by sites from the top of its thread.

    Args:
        top: For each row the node below which its thread's paths start. Shape ``(n,)``.
        site: Site of each row. Shape ``(n,)``.
        restart: A second site of each row, or None. Where it differs from the caller's, the path
            starts over below the thread with this site. Shape ``(n,)``.

    Returns:
        Nodes, :data:`TOP` for rows that are not on the host. Shape ``(n,)``.
    """
    node = np.full(len(site), TOP, dtype=np.int64)
    for level in tree.levels:
        parent = tree.parent[level]
        has_parent = parent != NO_ROW
        above = np.where(has_parent, node[parent], top[level])
        if restart is not None:
            begins = ~has_parent | (restart[level] != restart[parent])
            above[begins] = paths.children(top[level[begins]], restart[level[begins]])
        node[level] = paths.children(above, site[level])
    return node


def number_stack_paths(
    paths: Paths, stacks: Stacks, site: Int64s, in_path: Mask, top: Int64s, wanted: Int32s
) -> Int64s:
    """Number the paths of some stacks, from the outermost frame inward.

    Args:
        site: Site of each frame. Shape ``(f,)``.
        in_path: Which frames are part of paths. Shape ``(f,)``.
        top: For each wanted stack the node below which its path starts. Shape ``(k,)``.
        wanted: Numbers of stacks. Shape ``(k,)``.

    Returns:
        Nodes. Shape ``(k,)``.
    """
    node: Int64s = top.copy()
    # All stacks advance by one frame at a time.
    place = stacks.start[wanted + 1].astype(np.int64) - 1
    first = stacks.start[wanted]
    unfinished = np.flatnonzero(place >= first)
    while len(unfinished):
        frame = stacks.frame[place[unfinished]]
        is_node = in_path[frame]
        node[unfinished[is_node]] = paths.children(node[unfinished[is_node]], site[frame[is_node]])
        place[unfinished] -= 1
        unfinished = unfinished[place[unfinished] >= first[unfinished]]
    return node
