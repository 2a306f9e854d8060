"""Numbers for paths of names from the top of a call tree down: equal paths, equal numbers."""

from typing import Final

import numpy as np

from profkit.index.host.nesting import CallTree
from profkit.model.events import NO_ROW, Int32s, Int64s, Mask
from profkit.model.snapshot import Stacks

_FEW: Final = 1 << 16
_DENSE: Final = 4
TOP = -1
"""What stands above the first node of a path."""


class Paths:
    """A tree of paths that grows. A node is a parent's number and what comes next, a site."""

    def __init__(self) -> None:
        self._parents: list[Int64s] = []
        self._sites: list[Int64s] = []
        self._numbers: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def children(self, above: Int64s, site: Int64s) -> Int64s:
        """The nodes that some sites are below others.

        Args:
            above: Numbers of nodes, or :data:`TOP`. Shape ``(k,)``.
            site: A number of 0 or more each. Shape ``(k,)``.

        Returns:
            Numbers of nodes, made where they are new, each above its children's. Shape ``(k,)``.
        """
        width = int(site.max(initial=0)) + 1
        key, place = numbered((above + 1) * width + site)
        over, under = key // width - 1, key % width
        numbers = self._numbers
        found = np.fromiter(
            (
                numbers.setdefault(pair, len(numbers))
                for pair in zip(over.tolist(), under.tolist(), strict=True)
            ),
            np.int64,
            len(key),
        )
        return np.asarray(found[place])

    def columns(self) -> tuple[Int32s, Int32s]:
        """The parent and the site of every node. A node precedes its children."""
        pairs = np.array(list(self._numbers), dtype=np.int32).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]


def paths_of_tree(
    paths: Paths, tree: CallTree, top: Int64s, site: Int64s, anew: Int64s | None = None
) -> Int64s:
    """The node of every host row: its path of sites from the top of its thread.

    Args:
        paths: Where the nodes are.
        top: For each row the node that its thread's paths begin below. Shape ``(n,)``.
        site: The site of each row. Shape ``(n,)``.
        anew: For each row a site that a path begins with again wherever it is not the caller's, or
            None: so that rows are told by it, whatever calls them. Shape ``(n,)``.

    Returns:
        Numbers of nodes, :data:`TOP` for rows that are not on the host. Shape ``(n,)``.
    """
    node = np.full(len(site), TOP, dtype=np.int64)
    for level in tree.levels:
        parent = tree.parent[level]
        has = parent != NO_ROW
        above = np.where(has, node[parent], top[level])
        if anew is not None:
            begins = ~has | (anew[level] != anew[parent])
            above[begins] = paths.children(top[level[begins]], anew[level[begins]])
        node[level] = paths.children(above, site[level])
    return node


def paths_of_stacks(
    paths: Paths, stacks: Stacks, site: Int64s, keep: Mask, top: Int64s, wanted: Int32s
) -> Int64s:
    """The node of some stacks, from the outermost frame down.

    Args:
        paths: Where the nodes are.
        site: The site of each frame. Shape ``(f,)``.
        keep: Which frames are in a path; the others are passed over. Shape ``(f,)``.
        top: For each wanted stack the node that it is below. Shape ``(k,)``.
        wanted: Numbers of stacks. Shape ``(k,)``.

    Returns:
        Numbers of nodes. Shape ``(k,)``.
    """
    node: Int64s = top.copy()
    place = stacks.start[wanted + 1].astype(np.int64) - 1
    first = stacks.start[wanted]
    here = np.flatnonzero(place >= first)
    while len(here):
        frame = stacks.frame[place[here]]
        kept = keep[frame]
        node[here[kept]] = paths.children(node[here[kept]], site[frame[kept]])
        place[here] -= 1
        here = here[place[here] >= first[here]]
    return node


def numbered(keys: Int64s) -> tuple[Int64s, Int64s]:
    """The different keys, ascending, and for each key its place among them.

    As ``np.unique`` with ``return_inverse`` does; where keys lie close to one another by a table of
    all that there could be, which is quicker than to sort them.

    Args:
        keys: Numbers of 0 or more. Shape ``(n,)``.
    """
    most = int(keys.max(initial=0))
    if most > _DENSE * len(keys) + _FEW:
        found, place = np.unique(keys, return_inverse=True)
        return found, place.astype(np.int64)
    there = np.zeros(most + 1, dtype=np.bool_)
    there[keys] = True
    return np.flatnonzero(there).astype(np.int64), (np.cumsum(there) - 1)[keys]
