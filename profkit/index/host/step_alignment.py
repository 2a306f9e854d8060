"""Lines that profkit recorded beside the events, joined to them.

Python stacks about double the host time of small steps. So where steps repeat profkit times steps
without stacks, and another step lends them its lines: its operators, in their order, are the same.
An operator is recognized by its name, the names of the operators around it, and how many like it
came before it in the step.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from profkit.index.host.nesting import CallTree
from profkit.index.host.steps import Steps
from profkit.index.launches import match_first
from profkit.model.capture_info import OpLines
from profkit.model.events import MISSING, NO_ROW, Category, EventTable, Int32s, Int64s, Mask, Rows
from profkit.model.torch_names import COMPILED_REGION_PREFIX, STEP_PREFIX

NOTHING = -1
_PIECE: Final = 1 << 18
"""Rows that are looked up together, at least: of a long recording not all at once."""


@dataclass(frozen=True)
class AlignedLines:
    """For every row the entry of the :class:`OpLines` that it is, or -1. Shape ``(n,)``."""

    entry: npt.NDArray[np.int32]


def align_lines(events: EventTable, tree: CallTree, steps: Steps, lines: OpLines) -> AlignedLines:
    """Find for every operator, annotation and lone call its entry in the recorded lines."""
    like = _like_an_entry(events, tree, steps)
    entry = _by_sequence(events, tree, steps, lines, like)
    if lines.same_window:
        places = np.arange(len(lines.name), dtype=np.intp)
        ids = np.array(lines.external_id, dtype=np.int64)
        ids[ids < 0] = MISSING
        rows = np.flatnonzero(like)
        by_id = match_first(ids, places, _operator_ids(events, rows))
        entry[rows] = np.where(by_id != NOTHING, by_id, entry[rows])
    return AlignedLines(entry)


def _operator_ids(events: EventTable, rows: Rows) -> Int64s:
    """The operator that some rows are or belong to, by id, or :data:`MISSING`. Shape of ``rows``.

    Where the profiler knows no operator of a call it may write the call's own correlation instead,
    which is the number of any operator or none.

    Source: ``libkineto/src/output_json.cpp`` (``handleActivity``), for the calls of all vendors but
    CUDA's and PrivateUse1's.
    """
    ids = events.external_id.at(rows)
    ids[ids == events.correlation.at(rows)] = MISSING
    return ids


def _like_an_entry(events: EventTable, tree: CallTree, steps: Steps) -> Mask:
    """Rows that the recorded lines may hold: operators, annotations, calls outside operators."""
    named = np.isin(events.category, (Category.OP, Category.ANNOTATION))
    named[steps.rows] = False
    calls = np.isin(events.category, (Category.RUNTIME, Category.DRIVER))
    return np.asarray(named | (calls & (tree.nearest(named) == NO_ROW)))


def _by_sequence(
    events: EventTable, tree: CallTree, steps: Steps, lines: OpLines, like: Mask
) -> Int32s:
    """The entry of every row, by path of names and count within the step. Shape ``(n,)``."""
    entry = np.full(len(events), NOTHING, dtype=np.int32)
    if not lines.name:
        return entry
    lent_paths, numbers = _lent_paths(lines)
    path = _own_paths(events, tree, like, lines, numbers)
    table = _LentTable(lent_paths, np.array(lines.frame, np.int64))
    known = _by_start(events, np.flatnonzero(path != NOTHING).astype(np.int32))
    begins = np.searchsorted(events.ts_ns[known], steps.starts_ns)
    for piece in _pieces(len(known), begins):
        here = known[piece]
        entry[here] = table.look_up_in_order(path[here], steps.of(events.ts_ns[here]))
    return entry


def _by_start(events: EventTable, rows: Int32s) -> Int32s:
    """The rows in the order of time, in which most recordings have them already."""
    starts = events.ts_ns[rows]
    if (starts[1:] >= starts[:-1]).all():
        return rows
    return rows[np.argsort(starts, kind="stable")]


def _pieces(n: int, begins: Rows) -> Iterator[slice]:
    """Pieces of what is in the order of time, which end where a step begins: none is in two."""
    begin = 0
    while begin < n:
        place = np.searchsorted(begins, begin + _PIECE)
        end = int(begins[place]) if place < len(begins) else n
        yield slice(begin, end)
        begin = end


def _without_steps(lines: OpLines) -> list[int]:
    """Parents of the entries; a step's own annotation is no parent, as it is none in the trace."""
    steps = [text.startswith(STEP_PREFIX) for text in lines.names]
    return [
        above if above >= 0 and not steps[lines.name[above]] else NOTHING for above in lines.parent
    ]


def _lent_paths(lines: OpLines) -> tuple[Int64s, dict[tuple[int, int], int]]:
    """A number for every path of names from the top of a thread, among the recorded lines.

    Returns:
        The path of each entry; and the numbers of the paths, each by the number of the path
        without its last name, or -1 at the top, and that name's.
    """
    numbers: dict[tuple[int, int], int] = {}
    parents = _without_steps(lines)
    by_name = _number_by_name(lines)
    alike = [by_name[_plain(name)] for name in lines.names]
    paths = np.full(len(parents), NOTHING, dtype=np.int64)
    for i in _parents_first(np.array(parents, dtype=np.int64)).tolist():
        above = NOTHING if parents[i] < 0 else int(paths[parents[i]])
        paths[i] = numbers.setdefault((above, alike[lines.name[i]]), len(numbers))
    return paths, numbers


def _number_by_name(lines: OpLines) -> dict[str, int]:
    """One number for all names that are alike."""
    numbers: dict[str, int] = {}
    for number, name in enumerate(lines.names):
        numbers.setdefault(_plain(name), number)
    return numbers


def _plain(name: str) -> str:
    """A name without what differs from step to step: which version of a function runs."""
    return COMPILED_REGION_PREFIX if name.startswith(COMPILED_REGION_PREFIX) else name


def _own_paths(
    events: EventTable,
    tree: CallTree,
    like: Mask,
    lines: OpLines,
    numbers: Mapping[tuple[int, int], int],
) -> Int32s:
    """The recorded lines' path that each row's is, or -1.

    Args:
        tree: Their call tree, which is worked down a level at a time.
        like: Rows that have a path; the others are passed over. Shape ``(n,)``.
        lines: The recorded lines.
        numbers: Their paths, from :func:`_lent_paths`.

    Returns:
        Shape ``(n,)``.
    """
    width = len(lines.names)
    by_name = _number_by_name(lines)
    name = np.array([by_name.get(_plain(text), NOTHING) for text in events.names], dtype=np.int64)
    keys = np.array([(above + 1) * width + last for above, last in numbers], dtype=np.int64)
    by_key = np.argsort(keys)
    # What a path ends with is in no recorded line: nor is then any path that goes on from it.
    unknown = len(numbers)
    path = np.full(len(events), NOTHING, dtype=np.int32)
    for level in tree.levels:
        parent = tree.parent[level]
        above = np.where(parent == NO_ROW, NOTHING, path[parent])
        last = name[events.name[level]]
        wanted = (above.astype(np.int64) + 1) * width + last
        place = by_key[np.minimum(np.searchsorted(keys, wanted, sorter=by_key), len(keys) - 1)]
        hit = (keys[place] == wanted) & (last != NOTHING) & (above != unknown)
        path[level] = np.where(like[level], np.where(hit, place, unknown), above)
    path[~like | (path == unknown)] = NOTHING
    return path


def _parents_first(parents: Int64s) -> Rows:
    """The entries in an order in which every parent precedes its children."""
    depth = np.zeros(len(parents), dtype=np.int64)
    above = parents.copy()
    while (up := above >= 0).any():
        depth[up] += 1
        above[up] = parents[above[up]]
    return np.argsort(depth, kind="stable")


def _count(paths: Int32s, step: Int32s) -> tuple[Int64s, Int64s]:
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

    def look_up_in_order(self, paths: Int32s, step: Int32s) -> Int64s:
        """The entry for each of whole steps' rows, in the order of time. Shape of ``paths``."""
        order = np.lexsort((paths, step))
        nth, n_in_step = _count(paths[order], step[order])
        found = np.empty(len(paths), dtype=np.int64)
        found[order] = self._look_up(paths[order], nth, n_in_step, step[order])
        return found

    def _look_up(self, paths: Int32s, nth: Int64s, n_in_step: Int64s, step: Int32s) -> Int64s:
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
