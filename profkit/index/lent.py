"""Lines that profkit recorded beside the events, joined to them.

Python stacks about double the host time of small steps. So where steps repeat profkit times steps
without stacks, and another step lends them its lines: its operators, in their order, are the same.
An operator is recognized by its name, the names of the operators around it, and how many like it
came before it in the step.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profkit.index.launches import match_first
from profkit.index.nesting import CallTree
from profkit.index.steps import Steps
from profkit.model.capture_info import OpLines
from profkit.model.events import MISSING, NO_ROW, Category, EventTable, Int64s, Mask, Rows

NOTHING = -1


@dataclass(frozen=True)
class Lent:
    """For every row the entry of the :class:`OpLines` that it is, or -1. Shape ``(n,)``."""

    entry: npt.NDArray[np.int32]


def lend(events: EventTable, tree: CallTree, steps: Steps, lines: OpLines) -> Lent:
    """Find for every operator, annotation and lone call its entry in the recorded lines."""
    entry = np.full(len(events), NOTHING, dtype=np.int32)
    places = np.arange(len(lines.name), dtype=np.intp)
    like = _like_an_entry(events, tree, steps)
    rows = np.flatnonzero(like)
    if lines.same_window:
        ids = np.array(lines.external_id, dtype=np.int64)
        ids[ids < 0] = MISSING
        entry[rows] = match_first(ids, places, events.external_id.at(rows))
        rows = rows[entry[rows] == NOTHING]
    entry[rows] = _by_sequence(events, tree, steps, lines, like, rows)
    return Lent(entry)


def _like_an_entry(events: EventTable, tree: CallTree, steps: Steps) -> Mask:
    """Rows that the recorded lines may hold: operators, annotations, calls outside operators."""
    named = np.isin(events.category, (Category.OP, Category.ANNOTATION))
    named[steps.rows] = False
    calls = np.isin(events.category, (Category.RUNTIME, Category.DRIVER))
    return np.asarray(named | (calls & (tree.nearest(named) == NO_ROW)))


def _by_sequence(
    events: EventTable, tree: CallTree, steps: Steps, lines: OpLines, like: Mask, rows: Rows
) -> npt.NDArray[np.int32]:
    """The entries of some rows, by path of names and count within the step."""
    if not len(rows) or not lines.name:
        return np.full(len(rows), NOTHING, dtype=np.int32)
    numbers = {name: i for i, name in enumerate(lines.names)}
    name_numbers = np.array([numbers.get(name, NOTHING) for name in events.names], dtype=np.int64)
    all_rows = np.flatnonzero(like)
    parents = tree.below(like)[all_rows]
    back = np.full(len(events), NOTHING, dtype=np.int64)
    back[all_rows] = np.arange(len(all_rows))
    own_paths, lent_paths = _paths(
        (name_numbers[events.name[all_rows]], np.where(parents == NO_ROW, -1, back[parents])),
        (np.array(lines.name, np.int64), _without_steps(lines)),
    )
    step = steps.of(events.ts_ns[all_rows]).astype(np.int64)
    order = np.lexsort((events.ts_ns[all_rows], own_paths, step))
    nth, n_in_step = _count(own_paths[order], step[order])
    table = _LentTable(lent_paths, np.array(lines.frame, np.int64))
    found = np.full(len(all_rows), NOTHING, dtype=np.int32)
    found[order] = table.look_up(own_paths[order], nth, n_in_step, step[order])
    return found[back[rows]]


def _without_steps(lines: OpLines) -> Int64s:
    """Parents of the entries; a step's own annotation is no parent, as it is none in the trace."""
    parent = np.array(lines.parent, dtype=np.int64)
    name = np.array(lines.name, dtype=np.int64)
    steps = np.array([text.startswith("ProfilerStep") for text in lines.names], dtype=np.bool_)
    is_step = steps[name]
    return np.where((parent >= 0) & ~is_step[np.maximum(parent, 0)], parent, -1)


def _paths(own: tuple[Int64s, Int64s], lent: tuple[Int64s, Int64s]) -> tuple[Int64s, Int64s]:
    """A number for every path of names from the top of a thread, the same for both sides.

    Args:
        own: Names and parents of the trace's entries. A name of -1 is in no recorded line.
        lent: Names and parents of the recorded lines.
    """
    numbers: dict[tuple[int, int], int] = {}
    sides = []
    for names, parents in (own, lent):
        paths = np.full(len(names), NOTHING, dtype=np.int64)
        for i in _parents_first(parents).tolist():
            above = -1 if parents[i] < 0 else int(paths[parents[i]])
            paths[i] = numbers.setdefault((above, int(names[i])), len(numbers))
        sides.append(paths)
    return sides[0], sides[1]


def _parents_first(parents: Int64s) -> Rows:
    """The entries in an order in which every parent precedes its children."""
    depth = np.zeros(len(parents), dtype=np.int64)
    above = parents.copy()
    while (up := above >= 0).any():
        depth[up] += 1
        above[up] = parents[above[up]]
    return np.argsort(depth, kind="stable")


def _count(paths: Int64s, step: Int64s) -> tuple[Int64s, Int64s]:
    """How many of its path came before each in its step, and how many there are in all.

    Args:
        paths: Ordered by step, then path. Shape ``(n,)``.
        step: Shape ``(n,)``.
    """
    begins = np.concatenate(([True], (paths[1:] != paths[:-1]) | (step[1:] != step[:-1])))
    group = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    sizes = np.diff(np.concatenate((first, [len(paths)])))
    return np.arange(len(paths)) - first[group], sizes[group]


class _LentTable:
    """The recorded lines by path and count."""

    def __init__(self, paths: Int64s, frames: Int64s) -> None:
        self._order = np.argsort(paths, kind="stable")
        self._paths = paths[self._order]
        self._frames = frames[self._order]

    def look_up(self, paths: Int64s, nth: Int64s, n_in_step: Int64s, step: Int64s) -> Int64s:
        """The entry for each: the one of the same count where the counts of the path agree.

        Where they don't (a branch taken in one step only), or outside steps, an entry serves only
        if every entry of its path has the same frame: no line is better than a wrong one.
        """
        first = np.searchsorted(self._paths, paths, side="left")
        last = np.searchsorted(self._paths, paths, side="right")
        n_lent = last - first
        changes = np.concatenate(([0], np.cumsum(self._frames[1:] != self._frames[:-1])))
        final = np.minimum(np.maximum(last - 1, 0), len(changes) - 1)
        begin = np.minimum(first, len(changes) - 1)
        agree = changes[final] == changes[begin]
        same_count = (n_lent == n_in_step) & (step >= 0)
        place = np.where(same_count, first + nth, first)
        usable = (n_lent > 0) & (same_count | agree)
        found = np.full(len(paths), NOTHING, dtype=np.int64)
        found[usable] = self._order[place[usable]]
        return found
