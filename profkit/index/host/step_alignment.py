"""Alignment of separately recorded source lines with the events of a trace.

Python stacks about double the host time of short steps. So profkit records repeating steps without
stacks, and takes the source lines from another step, which runs the same operators in the same
order. An operator is identified by its name, the names of the enclosing operators, and the number
of identical ones before it in the step. Where steps differ in that number (episodes, sequences of
different lengths), it is identified by what runs just before and after it.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from profkit.index.host.nesting import CallTree
from profkit.index.host.steps import Steps
from profkit.index.launches import match_first
from profkit.model.capture_info import OpLines
from profkit.model.events import (
    HOST_CALLS,
    MISSING,
    NO_ROW,
    RECORD_FUNCTIONS,
    EventTable,
    Int32s,
    Int64s,
    Mask,
    Rows,
)
from profkit.model.torch_names import COMPILED_REGION_PREFIX, STEP_PREFIX

NO_ENTRY: Final = -1
_CHUNK: Final = 1 << 18
"""Minimum number of rows looked up at once, to bound memory."""
_NEIGHBOURS: Final = (8, 4, 2)
"""Numbers of operators before and after an operator that identify it: the most certain first, the
fewest for operators near a branch that only one of the steps takes."""
_HASH_BASE: Final = np.uint64(0x9E3779B97F4A7C15)


def align_lines(events: EventTable, tree: CallTree, steps: Steps, lines: OpLines) -> Int32s:
    """Find the entry of every operator, annotation and call outside operators, else -1."""
    alignable = _find_alignable(events, tree, steps)
    entry = _align_by_sequence(events, tree, steps, lines, alignable)

    # Ids are exact, but hold only within one window.
    if lines.same_window:
        places = np.arange(len(lines.name), dtype=np.intp)
        ids = np.array(lines.external_id, dtype=np.int64)
        ids[ids < 0] = MISSING
        rows = np.flatnonzero(alignable)
        by_id = match_first(ids, places, _operator_ids(events, rows))
        entry[rows] = np.where(by_id != NO_ENTRY, by_id, entry[rows])
    return entry


def _operator_ids(events: EventTable, rows: Rows) -> Int64s:
    """Return the id of each row's own or enclosing operator, or :data:`MISSING`. Shape of ``rows``.

    Without an operator the profiler may write a call's own correlation instead, which may equal the
    id of an unrelated operator.

    Source: ``libkineto/src/output_json.cpp`` (``handleActivity``), for the calls of all vendors but
    CUDA's and PrivateUse1's.
    """
    ids = events.external_id.at(rows)
    ids[ids == events.correlation.at(rows)] = MISSING
    return ids


def _find_alignable(events: EventTable, tree: CallTree, steps: Steps) -> Mask:
    """Find rows that entries may describe: operators, annotations, calls outside operators."""
    named = np.isin(events.category, RECORD_FUNCTIONS)
    named[steps.annotations] = False
    calls = np.isin(events.category, HOST_CALLS)
    return np.asarray(named | (calls & (tree.nearest(named) == NO_ROW)))


def _align_by_sequence(
    events: EventTable, tree: CallTree, steps: Steps, lines: OpLines, alignable: Mask
) -> Int32s:
    """Find the entry of every row by path of names and count within the step. Shape ``(n,)``."""
    entry = np.full(len(events), NO_ENTRY, dtype=np.int32)
    if not lines.name:
        return entry

    recorded_paths, numbers = _number_paths(lines)
    path = _find_trace_paths(events, tree, alignable, lines, numbers)
    table = _LineTable(recorded_paths, np.array(lines.frame, np.int64))

    rows_with_path = _sort_by_start(events, np.flatnonzero(path != NO_ENTRY).astype(np.int32))
    begins = np.searchsorted(events.ts_ns[rows_with_path], steps.starts_ns)
    for chunk in _split_at_steps(len(rows_with_path), begins):
        chunk_rows = rows_with_path[chunk]
        entry[chunk_rows] = table.look_up_in_order(
            path[chunk_rows], steps.of(events.ts_ns[chunk_rows])
        )
    return entry


def _sort_by_start(events: EventTable, rows: Int32s) -> Int32s:
    """Sort rows by time, as they are already in most recordings."""
    starts = events.ts_ns[rows]
    if (starts[1:] >= starts[:-1]).all():
        return rows
    return rows[np.argsort(starts, kind="stable")]


def _split_at_steps(n_rows: int, begins: Rows) -> Iterator[slice]:
    """Split rows in time order into chunks that end where a step begins."""
    begin = 0
    while begin < n_rows:
        place = np.searchsorted(begins, begin + _CHUNK)
        end = int(begins[place]) if place < len(begins) else n_rows
        yield slice(begin, end)
        begin = end


def _without_steps(lines: OpLines) -> list[int]:
    """Return the parents of the entries, ignoring annotations of steps."""
    steps = [text.startswith(STEP_PREFIX) for text in lines.names]
    return [
        above if above >= 0 and not steps[lines.name[above]] else NO_ENTRY for above in lines.parent
    ]


def _number_paths(lines: OpLines) -> tuple[Int64s, dict[tuple[int, int], int]]:
    """Number the paths of names of all recorded lines.

    Returns:
        The path of each entry; and the numbers of the paths by the number of the parent path, or -1
        at the top, and the number of the last name.
    """
    numbers: dict[tuple[int, int], int] = {}
    parents = _without_steps(lines)
    by_name = _number_by_name(lines)
    number_of = [by_name[_without_number(name)] for name in lines.names]

    paths: list[int] = []
    for parent, name in zip(parents, lines.name, strict=True):
        above = NO_ENTRY if parent < 0 else paths[parent]
        paths.append(numbers.setdefault((above, number_of[name]), len(numbers)))
    return np.array(paths, dtype=np.int64), numbers


def _number_by_name(lines: OpLines) -> dict[str, int]:
    """Return one number for all equivalent names."""
    numbers: dict[str, int] = {}
    for number, name in enumerate(lines.names):
        numbers.setdefault(_without_number(name), number)
    return numbers


def _without_number(name: str) -> str:
    """Return a name without the compile id, which may differ between steps."""
    return COMPILED_REGION_PREFIX if name.startswith(COMPILED_REGION_PREFIX) else name


def _find_trace_paths(
    events: EventTable,
    tree: CallTree,
    alignable: Mask,
    lines: OpLines,
    numbers: Mapping[tuple[int, int], int],
) -> Int32s:
    """Find the recorded path of each row, or -1. Shape ``(n,)``.

    Args:
        alignable: Rows that are part of paths, while other rows are skipped. Shape ``(n,)``.
        numbers: From :func:`_number_paths`.
    """
    width = len(lines.names)
    by_name = _number_by_name(lines)
    name = np.array(
        [by_name.get(_without_number(text), NO_ENTRY) for text in events.names], dtype=np.int64
    )

    keys = np.array([(above + 1) * width + last for above, last in numbers], dtype=np.int64)
    by_key = np.argsort(keys)
    # A path that no recorded line has; its extensions are unknown too.
    unknown = len(numbers)
    path = np.full(len(events), NO_ENTRY, dtype=np.int32)

    for level in tree.levels:
        parent = tree.parent[level]
        above = np.where(parent == NO_ROW, NO_ENTRY, path[parent])
        last = name[events.name[level]]
        wanted = (above.astype(np.int64) + 1) * width + last
        place = by_key[np.minimum(np.searchsorted(keys, wanted, sorter=by_key), len(keys) - 1)]
        is_recorded = (keys[place] == wanted) & (last != NO_ENTRY) & (above != unknown)
        path[level] = np.where(alignable[level], np.where(is_recorded, place, unknown), above)

    path[~alignable | (path == unknown)] = NO_ENTRY
    return path


def _count(paths: Int32s, step: Int32s) -> tuple[Int64s, Int64s]:
    """Count the rows of the same path before each row in its step, and in the whole step.

    Args:
        paths: Ordered by step, then path. Shape ``(n,)``.
        step: Shape ``(n,)``.
    """
    begins = np.concatenate(([True], (paths[1:] != paths[:-1]) | (step[1:] != step[:-1])))
    group = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    sizes = np.diff(np.concatenate((first, [len(paths)])))
    return np.arange(len(paths)) - first[group], sizes[group]


def _hash_neighbourhoods(
    paths: Int64s | Int32s, step: Int32s, rows: Rows, reach: int
) -> npt.NDArray[np.uint64]:
    """Hash the paths from ``reach`` rows before to as many after each row in its step.

    Args:
        paths: In time order. Shape ``(n,)``.
        step: Shape ``(n,)``.

    Returns:
        Shape of ``rows``.
    """
    # A polynomial hash: equal neighbourhoods have equal numbers.
    total = np.zeros(len(rows), dtype=np.uint64)
    for offset in range(-reach, reach + 1):
        place = np.clip(rows + offset, 0, len(paths) - 1)
        inside = (place == rows + offset) & (step[place] == step[rows])
        total = total * _HASH_BASE + np.where(inside, paths[place] + 1, 0).astype(np.uint64)
    return total


class _LineTable:
    """Recorded lines by path and count."""

    def __init__(self, paths: Int64s, frames: Int64s) -> None:
        self._in_order, self._frames_in_order = paths, frames
        self._order = np.argsort(paths, kind="stable")
        self._paths = paths[self._order]
        self._frames = frames[self._order]

    def look_up_in_order(self, paths: Int32s, step: Int32s) -> Int64s:
        """Look up the entries of the rows of whole steps, in time order. Shape of ``paths``."""
        order = np.lexsort((paths, step))
        nth, n_in_step = _count(paths[order], step[order])

        entries = np.empty(len(paths), dtype=np.int64)
        entries[order] = self._look_up(paths[order], nth, n_in_step, step[order])

        for reach in _NEIGHBOURS:
            missing = np.flatnonzero((entries == NO_ENTRY) & (step >= 0))
            if len(missing):
                entries[missing] = self._look_up_by_neighbours(paths, step, missing, reach)
        return entries

    def _look_up_by_neighbours(self, paths: Int32s, step: Int32s, rows: Rows, reach: int) -> Int64s:
        """Look up the entry with the same neighbours, if all such entries have the same frame."""
        everywhere = np.arange(len(self._in_order))
        one_step = np.zeros(len(everywhere), dtype=np.int32)
        recorded = _hash_neighbourhoods(self._in_order, one_step, everywhere, reach)
        hashes, first, number = np.unique(recorded, return_index=True, return_inverse=True)
        agree = np.ones(len(hashes), dtype=np.bool_)
        agree[number[self._frames_in_order != self._frames_in_order[first[number]]]] = False

        wanted = _hash_neighbourhoods(paths, step, rows, reach)
        place = np.minimum(np.searchsorted(hashes, wanted), len(hashes) - 1)
        return np.where((hashes[place] == wanted) & agree[place], first[place], NO_ENTRY)

    def _look_up(self, paths: Int32s, nth: Int64s, n_in_step: Int64s, step: Int32s) -> Int64s:
        """Look up the entry of the same count where a path is equally frequent in both steps.

        Otherwise (a branch taken in one step only), and outside steps, an entry is used only if all
        entries of its path have the same frame: no line is better than a wrong one.
        """
        first = np.searchsorted(self._paths, paths, side="left")
        last = np.searchsorted(self._paths, paths, side="right")
        # Counts identify a row only if both steps run the path equally often.
        n_recorded = last - first

        n_changes = np.concatenate(([0], np.cumsum(self._frames[1:] != self._frames[:-1])))
        final = np.minimum(np.maximum(last - 1, 0), len(n_changes) - 1)
        begin = np.minimum(first, len(n_changes) - 1)
        has_one_frame = n_changes[final] == n_changes[begin]

        same_count = (n_recorded == n_in_step) & (step >= 0)
        place = np.where(same_count, first + nth, first)
        usable = (n_recorded > 0) & (same_count | has_one_frame)

        entries = np.full(len(paths), NO_ENTRY, dtype=np.int64)
        entries[usable] = self._order[place[usable]]
        return entries
