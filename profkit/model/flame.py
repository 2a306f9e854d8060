"""A flame graph: weights by the stack that they belong to, as a call tree in columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np

from profkit.model.events import NO_ROW, Int32s, Int64s
from profkit.model.location import Frame

FlameUnit = Literal["ns", "bytes"]
SiteKind = Literal[
    "thread", "device", "step", "line", "python", "module", "annotation", "op", "call", "kernel",
    "copy", "use", "unknown",
]  # fmt: skip
"""What a node of a flame graph is: a thread or a device at the top; steps; a line of the user's;
Python calls; ``nn.Module``; annotations; operators; runtime and driver calls; kernels; copies and
fills; what memory is used for; and what the recording does not tell."""

FLAMES: Final[Mapping[str, str]] = {
    "host-stack": "Host time by stack",
    "host-line": "Host time by line",
    "device-stack": "Device time by stack at the launch",
    "device-line": "Device time by line",
    "device-module": "Device time by module",
    "memory-stack": "Memory at the peak by stack",
    "memory-use": "Memory at the peak by use and line",
}
"""Every flame graph by name, with its title."""


@dataclass(frozen=True)
class FlameSite:
    """What one or more nodes stand for.

    Attributes:
        kind: What it is.
        name: Its name as recorded.
        frame: The line of Python, where it is one.
    """

    kind: SiteKind
    name: str
    frame: Frame | None = None


@dataclass(frozen=True)
class Flame:
    """A weighted call tree. A node precedes its children; nodes without a parent are at the top.

    Attributes:
        name: A key of :data:`FLAMES`.
        unit: Of the weights.
        of: What the weights add up to, in one sentence.
        sites: Every site once.
        site: Index into ``sites``. Shape ``(k,)``.
        parent: Index of the caller's node, or :data:`~profkit.model.events.NO_ROW`. Shape ``(k,)``.
        n: How many calls, pieces of work or blocks end here. Shape ``(k,)``.
        own: Weight of the node itself, without its children. Shape ``(k,)``.
        total: Weight of the node and all below it. Shape ``(k,)``.
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

    def __len__(self) -> int:
        return len(self.site)

    @property
    def title(self) -> str:
        """Its title."""
        return FLAMES[self.name]

    @property
    def weight(self) -> int:
        """All weights together."""
        return int(self.own.sum())

    @cached_property
    def depth(self) -> Int32s:
        """Callers above each node. Shape ``(k,)``."""
        return depths(self.parent)

    def stack(self, node: int) -> tuple[FlameSite, ...]:
        """The sites from the top down to a node, itself included."""
        found = []
        while node != NO_ROW:
            found.append(self.sites[self.site[node]])
            node = int(self.parent[node])
        return tuple(reversed(found))


def depths(parent: Int32s) -> Int32s:
    """How many nodes are above each, where parents precede their children. Shape of ``parent``."""
    found = np.zeros(len(parent), dtype=np.int32)
    here = np.flatnonzero(parent != NO_ROW)
    above = parent[here]
    while len(here):
        found[here] += 1
        above = parent[above]
        more = above != NO_ROW
        here, above = here[more], above[more]
    return found
