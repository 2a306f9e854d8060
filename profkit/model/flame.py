"""Flame graphs: weights by stack, as a call tree in columns."""

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import Final, Literal

import numpy as np

from profkit.dataclass import dataclass
from profkit.model.events import NO_ROW, Int32s, Int64s, Rows
from profkit.model.location import Frame
from profkit.model.memory_series import LiveGroups

FlameUnit = Literal["ns", "bytes"]
SiteKind = Literal[
    "thread", "device", "step", "line", "python", "module", "annotation", "op", "call", "kernel",
    "copy", "use", "unknown",
]  # fmt: skip
"""Kind of a node: a thread or device at the top, a step, a line of user code, a Python call, an
``nn.Module``, an annotation, an operator, a runtime or driver call, a kernel, a copy or fill, a
use of memory, or unknown."""

FLAMES: Final[Mapping[str, str]] = {
    "host-stack": "Host time by stack",
    "host-line": "Host time by line",
    "device-stack": "Device time by stack at the launch",
    "device-line": "Device time by line",
    "device-module": "Device time by module",
    "memory-stack": "Memory at the peak by stack",
    "memory-use": "Memory at the peak by use and line",
}
"""Titles of the flame graphs by name."""


@dataclass(frozen=True)
class FlameSite:
    """The frame, operator, kernel or other item that a node represents.

    Attributes:
        frame: The Python frame, or None for other kinds.
    """

    kind: SiteKind
    name: str
    frame: Frame | None = None


@dataclass(frozen=True)
class Flame:
    """A weighted call tree. Parents precede their children; nodes without a parent are roots.

    Attributes:
        name: A key of :data:`FLAMES`.
        unit: Unit of the weights.
        of: What the weights add up to, in one sentence.
        sites: Each site once.
        site: Index into ``sites``. Shape ``(k,)``.
        parent: Index of the caller's node, or :data:`~profkit.model.events.NO_ROW`. Shape ``(k,)``.
        n: Number of calls, kernels, copies or blocks at this node itself. Shape ``(k,)``.
        own: Weight of the node without its descendants. Shape ``(k,)``.
        total: Weight of the node and its descendants. Shape ``(k,)``.
        first_ns: When the node or one of its descendants first began, in nanoseconds from the
            trace's start; None where that is not known. Shape ``(k,)``.
        lives: By device the blocks of its whole history, whose groups are nodes; so some nodes have
            no weight. Only if ``over_time`` was requested.
    """

    name: str
    unit: FlameUnit
    of: str
    sites: tuple[FlameSite, ...]
    site: Int32s
    parent: Int32s
    n: Int64s
    own: Int64s
    total: Int64s
    first_ns: Int64s | None = None
    lives: Mapping[str, LiveGroups] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.site)

    @property
    def title(self) -> str:
        """Return the flame graph's title."""
        return FLAMES[self.name]

    @property
    def weight(self) -> int:
        """Sum of all weights."""
        return int(self.own.sum())

    @cached_property
    def depth(self) -> Int32s:
        """Number of ancestors of each node. Shape ``(k,)``."""
        return depths(self.parent)

    @cached_property
    def by_depth(self) -> list[Rows]:
        """Return the nodes of each depth."""
        order = np.argsort(self.depth, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(self.depth[order])) + 1)

    def stack(self, node: int) -> tuple[FlameSite, ...]:
        """Return the sites from the root to a node, inclusive."""
        sites = []
        while node != NO_ROW:
            sites.append(self.sites[self.site[node]])
            node = int(self.parent[node])
        return tuple(reversed(sites))


def depths(parent: Int32s) -> Int32s:
    """Count the ancestors of each node; parents precede their children. Shape of ``parent``."""
    depth = np.zeros(len(parent), dtype=np.int32)
    nodes = np.flatnonzero(parent != NO_ROW)
    ancestors = parent[nodes]

    # One level of ancestors at a time, for all nodes that have one.
    while len(nodes):
        depth[nodes] += 1
        ancestors = parent[ancestors]
        has_ancestor = ancestors != NO_ROW
        nodes, ancestors = nodes[has_ancestor], ancestors[has_ancestor]
    return depth
