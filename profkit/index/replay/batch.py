"""Replays of one recording with many changes at once.

Most of a replay is the same with every change, so all are one pass over the graph, in which each
node has a row with one entry per change: how much later it is than without any. A node that no
change touches is as late as what it waits for, or as another predecessor less its slack.
Times equal single replays to the nanosecond.
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
    heads, run = _find_runs(graph, changes)

    # Of two predecessors first the one that a node waits for without changes.
    sides = ((graph.first, base.first_ns), (graph.second, base.second_ns))
    before = np.stack([np.maximum(edges.before[heads], ORIGIN) for edges, _ in sides])
    ready_ns = times[before] + np.stack([lags[heads] for _, lags in sides])
    swapped = np.flatnonzero(ready_ns[1] > ready_ns[0])
    before[:, swapped] = before[::-1, swapped]
    slack_ns = np.abs(ready_ns[0] - ready_ns[1])
    first, second = run[before]
    second[slack_ns > -NEVER // 2] = NO_ROW

    touched = _Touched.of(base, changes, marked(swapped, len(heads)), run)
    latest = _Latest.of(times, run, wanted)

    # A row is dropped after the block in which a run waits for it for the last time.
    last_use = np.arange(len(heads) + 1)  # the last entry is for NO_ROW
    for side in (first, second):
        np.maximum.at(last_use, side, np.arange(len(heads)))
    last_use[run[wanted.nodes]] = len(heads)
    by_last_use = np.argsort(last_use[:-1], kind="stable")
    last_use = last_use[by_last_use]

    row_of_run: list[Int64s | None] = [np.zeros(len(changes), dtype=np.int64)] * len(heads)
    latest_ns = np.full((wanted.n_groups, len(changes)), NEVER)
    for begin in range(0, len(heads), _BLOCK):
        end = min(begin + _BLOCK, len(heads))
        block = slice(max(begin, 1), end)
        _advance(row_of_run, block, first, second, slack_ns, touched)
        latest.update(latest_ns, row_of_run, begin, end)
        done = np.searchsorted(last_use, (begin, end))
        for i in by_last_use[slice(*done)].tolist():
            row_of_run[i] = None

    nodes = _stack_rows(row_of_run, run[wanted.nodes])
    return nodes + times[wanted.nodes, None], latest_ns


def _find_runs(graph: DependencyGraph, changes: Sequence[ChangedNodes]) -> tuple[Int32s, Int32s]:
    """Find the graph's heads and runs, where each touched node begins a run too.

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
        """Compare changes to the base. Where predecessors are swapped, their lags are too."""
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

    def iterate_within(self, block: slice) -> Iterator[tuple[int, int, int, int, int]]:
        """Iterate over the differences within some runs."""
        part = slice(*np.searchsorted(self.run, (block.start, block.stop)).tolist())
        columns = (self.run, self.change, self.first_ns, self.second_ns, self.dur_ns)
        return zip(*(column[part].data for column in columns), strict=True)


def _advance(
    rows: list[Any],
    block: slice,
    first: Int32s,
    second: Int32s,
    slack_ns: Int64s,
    touched: _Touched,
) -> None:
    """Find the rows of some runs, from the rows of their predecessors."""
    if block.start >= block.stop:
        return

    # Names of this function are faster to look up than attributes in a loop over all runs.
    subtract, maximum = np.subtract, np.maximum
    second_row = np.empty_like(rows[first[block.start]])
    columns = (first[block].data, second[block].data, slack_ns[block].data)
    none = (NO_ROW, 0, 0, 0, 0)
    changed = touched.iterate_within(block)
    run, number, by_first, by_second, by_dur = next(changed, none)

    for i, (before, second_before, slack) in enumerate(zip(*columns, strict=True), block.start):
        row = rows[before]
        if second_before >= 0:
            row = maximum(row, subtract(rows[second_before], slack, second_row))
        if i == run:
            row = row if second_before >= 0 else row.copy()
            while i == run:
                at = rows[before].item(number) + by_first
                if second_before >= 0:
                    at = max(at, rows[second_before].item(number) - slack + by_second)
                row[number] = at + by_dur
                run, number, by_first, by_second, by_dur = next(changed, none)
        rows[i] = row


def _stack_rows(rows: list[Any], of: Int32s) -> Int64s:
    return np.concatenate([rows[i] for i in of.tolist()]).reshape(len(of), -1)


@dataclass(frozen=True)
class _Latest:
    """The latest moment of each group within each run, by run. Shape ``(p,)`` each."""

    run: Int32s
    group: Rows
    ns: Int64s

    @classmethod
    def of(cls, times: Int64s, run: Int32s, wanted: Wanted) -> "_Latest":
        """Find the latest moments without changes."""
        place, group = run[wanted.members], wanted.group
        is_new = np.diff(place, prepend=NO_ROW) != 0
        is_new |= np.diff(group, prepend=NO_ROW) != 0
        first = np.flatnonzero(is_new)
        latest_ns = np.maximum.reduceat(times[wanted.members], first)

        order = np.argsort(place[first], kind="stable")
        return cls(place[first][order], group[first][order], latest_ns[order])

    def update(self, latest_ns: Int64s, rows: list[Any], begin: int, end: int) -> None:
        """Take the runs of a block into account."""
        part = slice(*np.searchsorted(self.run, (begin, end)).tolist())
        group = self.group[part]
        if not len(group):
            return

        first = np.flatnonzero(np.diff(group, prepend=NO_ROW))
        ends = _stack_rows(rows, self.run[part]) + self.ns[part, None]
        np.maximum.at(latest_ns, group[first], np.maximum.reduceat(ends, first))
