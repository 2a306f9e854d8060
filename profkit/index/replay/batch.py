"""Replays of one recording with many changes at once.

Most of a replay is the same with every change, so all are one pass over the graph, in which each
node has a row with one entry per change: how much later it is than without any. A node that no
change touches is as late as what it waits for, or as another predecessor less its slack.
Times are those of single replays, to the nanosecond.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.distinct import marked
from profkit.index.replay.graph import NEVER, ORIGIN, DependencyGraph, Weights
from profkit.model.events import NO_ROW, Int32s, Int64s, Mask, Rows

_BLOCK: Final = 1 << 14
"""Nodes after which rows that are no longer needed are dropped."""
MAX_CHANGES: Final = 64
"""Changes of one pass: rows of this length take hardly longer than shorter ones."""


@dataclass(frozen=True)
class ChangedNodes:
    """Durations and lags of the nodes that a change touches.

    Attributes:
        nodes: Ascending. Shape ``(m,)``.
        dur_ns: Shape ``(m,)``.
        first_ns: Shape ``(m,)``.
        second_ns: Shape ``(m,)``.
    """

    nodes: Rows
    dur_ns: Int64s
    first_ns: Int64s
    second_ns: Int64s


@dataclass(frozen=True)
class Wanted:
    """Moments to find: of single nodes, and the latest one of groups.

    Attributes:
        nodes: Shape ``(k,)``.
        members: Nodes of groups. Shape ``(m,)``.
        group: The group of each. Shape ``(m,)``.
        n_groups: How many groups there are.
    """

    nodes: Int32s
    members: Int32s
    group: Rows
    n_groups: int


def replay_all(
    graph: DependencyGraph, base: Weights, changes: Sequence[ChangedNodes], wanted: Wanted
) -> tuple[Int64s, Int64s]:
    """Replay a graph with each of some changes.

    Args:
        base: Durations and lags of what no change touches.

    Returns:
        The moments of the wanted nodes, shape ``(k, changes)``, and the latest moment of each
        group, shape ``(n_groups, changes)``.
    """
    times = graph.replay(base)
    heads, run = _runs(graph, changes)
    # Of two predecessors first the one that a node waits for without changes.
    sides = ((graph.first, base.first_ns), (graph.second, base.second_ns))
    before = np.stack([np.maximum(edges.before[heads], ORIGIN) for edges, _ in sides])
    ready_ns = times[before] + np.stack([lags[heads] for _, lags in sides])
    swapped = np.flatnonzero(ready_ns[1] > ready_ns[0])
    before[:, swapped] = before[::-1, swapped]
    slack_ns = np.abs(ready_ns[0] - ready_ns[1])
    one, other = run[before]
    other[slack_ns > -NEVER // 2] = NO_ROW
    touched = _Touched.of(base, changes, marked(swapped, len(heads)), run)
    latest = _Latest.of(times, run, wanted)
    last_use = np.arange(len(heads) + 1)  # the last one is that of NO_ROW
    for side in (one, other):
        np.maximum.at(last_use, side, np.arange(len(heads)))
    last_use[run[wanted.nodes]] = len(heads)
    by_last_use = np.argsort(last_use[:-1], kind="stable")
    last_use = last_use[by_last_use]

    rows: list[Int64s | None] = [np.zeros(len(changes), dtype=np.int64)] * len(heads)
    found = np.full((wanted.n_groups, len(changes)), NEVER)
    for begin in range(0, len(heads), _BLOCK):
        end = min(begin + _BLOCK, len(heads))
        block = slice(max(begin, 1), end)
        _go_on(rows, block, one, other, slack_ns, touched)
        latest.update(found, rows, begin, end)
        done = np.searchsorted(last_use, (begin, end))
        for i in by_last_use[slice(*done)].tolist():
            rows[i] = None
    nodes = _stacked(rows, run[wanted.nodes])
    return nodes + times[wanted.nodes, None], found


def _runs(graph: DependencyGraph, changes: Sequence[ChangedNodes]) -> tuple[Int32s, Int32s]:
    """The graph's heads and runs, where each touched node begins a run of its own as well.

    Returns:
        Heads, each after its predecessors, and the number of each node's run.
    """
    is_head = np.zeros(len(graph), dtype=np.bool_)
    is_head[graph.heads] = True
    for change in changes:
        is_head[change.nodes] = True
    heads = np.flatnonzero(is_head).astype(np.int32)
    order = np.argsort(graph.run[heads], kind="stable")
    number = np.empty(len(heads), dtype=np.int32)
    number[order] = np.arange(len(heads), dtype=np.int32)
    return heads[order], number[np.cumsum(is_head) - 1]


@dataclass(frozen=True)
class _Touched:
    """By how much changes differ from the base, by run. Shape ``(t,)`` each.

    Attributes:
        change: The number of the change.
        first_ns: What it adds to the lag after the first predecessor.
    """

    run: Int32s
    change: Int32s
    first_ns: Int64s
    second_ns: Int64s
    dur_ns: Int64s

    @classmethod
    def of(
        cls, base: Weights, changes: Sequence[ChangedNodes], swapped: Mask, run: Int32s
    ) -> "_Touched":
        """Compare changes to the base; where predecessors are swapped, their lags are too."""
        nodes = np.concatenate([change.nodes for change in changes])
        place = run[nodes]
        order = np.argsort(place, kind="stable")
        place, nodes = place[order], nodes[order]
        number = np.repeat(np.arange(len(changes)), [len(change.nodes) for change in changes])
        dur, first, second = (
            np.concatenate([getattr(change, name) for change in changes])[order] - of_base[nodes]
            for name, of_base in zip(("dur_ns", "first_ns", "second_ns"), base.columns, strict=True)
        )
        is_swapped = swapped[place]
        return cls(
            place,
            number[order].astype(np.int32),
            np.where(is_swapped, second, first),
            np.where(is_swapped, first, second),
            dur,
        )

    def within(self, block: slice) -> Iterator[tuple[int, int, int, int, int]]:
        """Those of some runs."""
        here = slice(*np.searchsorted(self.run, (block.start, block.stop)).tolist())
        columns = (self.run, self.change, self.first_ns, self.second_ns, self.dur_ns)
        return zip(*(column[here].data for column in columns), strict=True)


def _go_on(
    rows: list[Any], block: slice, one: Int32s, other: Int32s, slack_ns: Int64s, touched: _Touched
) -> None:
    """Find the rows of some runs."""
    if block.start >= block.stop:
        return
    subtract, maximum = np.subtract, np.maximum
    later = np.empty_like(rows[one[block.start]])
    columns = (one[block].data, other[block].data, slack_ns[block].data)
    none = (NO_ROW, 0, 0, 0, 0)
    changed = touched.within(block)
    run, number, by_first, by_second, by_dur = next(changed, none)
    for i, (first, second, slack) in enumerate(zip(*columns, strict=True), block.start):
        row = rows[first]
        if second >= 0:
            row = maximum(row, subtract(rows[second], slack, later))
        if i == run:
            row = row if second >= 0 else row.copy()
            while i == run:
                at = rows[first].item(number) + by_first
                if second >= 0:
                    at = max(at, rows[second].item(number) - slack + by_second)
                row[number] = at + by_dur
                run, number, by_first, by_second, by_dur = next(changed, none)
        rows[i] = row


def _stacked(rows: list[Any], of: Int32s) -> Int64s:
    return np.concatenate([rows[i] for i in of.tolist()]).reshape(len(of), -1)


@dataclass(frozen=True)
class _Latest:
    """The latest moment of each group within each run, by run. Shape ``(p,)`` each."""

    run: Int32s
    group: Rows
    ns: Int64s

    @classmethod
    def of(cls, times: Int64s, run: Int32s, wanted: Wanted) -> "_Latest":
        """Find them without changes."""
        place, group = run[wanted.members], wanted.group
        is_new = np.diff(place, prepend=NO_ROW) != 0
        is_new |= np.diff(group, prepend=NO_ROW) != 0
        first = np.flatnonzero(is_new)
        latest_ns = np.maximum.reduceat(times[wanted.members], first)
        order = np.argsort(place[first], kind="stable")
        return cls(place[first][order], group[first][order], latest_ns[order])

    def update(self, found: Int64s, rows: list[Any], begin: int, end: int) -> None:
        """Take the runs of a block into account."""
        here = slice(*np.searchsorted(self.run, (begin, end)).tolist())
        group = self.group[here]
        if not len(group):
            return
        first = np.flatnonzero(np.diff(group, prepend=NO_ROW))
        ends = _stacked(rows, self.run[here]) + self.ns[here, None]
        np.maximum.at(found, group[first], np.maximum.reduceat(ends, first))
