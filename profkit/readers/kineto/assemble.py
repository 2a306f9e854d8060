"""Joins the batches of a trace: one table of events, one of allocations."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from profkit.dataclass import dataclass
from profkit.model.events import (
    HOST_CALLS,
    MISSING,
    RECORD_FUNCTIONS,
    Category,
    EventTable,
    Int32s,
    Int64s,
    MemoryTable,
    SparseColumn,
)
from profkit.model.trace import InvalidEvent
from profkit.readers.kineto.batch import (
    INTERNED,
    MEMORY,
    SPARSE,
    Batch,
    Columns,
    InternTables,
    categories_with,
)
from profkit.readers.kineto.invalid_times import find_invalid_times
from profkit.readers.process_memory import release_free_memory

_HOST_TYPE: Final = 0
_HOST_DEVICE: Final = -1
_NO_PROCESS: Final = "-1"
_COMMON: Final = ("position", "lane", "ts_ns")
_BEGIN_END: Final = (*_COMMON, "category", "name")
COMPLETE: Final = (*_BEGIN_END, "dur_ns")
DTYPES: Final = {
    "category": np.uint8,
    **dict.fromkeys(("position", "name", "lane", "device_type", "device"), np.int32),
}
_MAX_LISTED: Final = 20

Batches = dict[int, Batch]
"""Batches by their position in the file: all of them, or those that one process read."""
_Sparse = dict[str, tuple[Int32s, npt.NDArray[Any]]]
"""By column, the rows that have a value, and the values."""


@dataclass(frozen=True)
class TraceTables:
    """A trace's events, allocations and the events that are left out.

    Attributes:
        start_ns: The trace's start on the file's clock; it is 0 in both tables.
        invalid: The first events with invalid times, which are in neither table.
        n_invalid: Number of events with invalid times.
        n_unpaired: Number of begin events without an end, and end events without a begin.
    """

    events: EventTable
    memory: MemoryTable
    start_ns: int
    invalid: tuple[InvalidEvent, ...]
    n_invalid: int
    n_unpaired: int


def renumber(batches: Batches, theirs: InternTables, ours: InternTables) -> None:
    """Renumber interned names and lanes of batches that another process read.

    Args:
        batches: Changed in place.
        theirs: The tables that the numbers refer to.
        ours: The tables that they are to refer to; extended with new texts.
    """
    # Looking a text up in ours adds it, so the index is the number in theirs, the value in ours.
    names = np.array([ours.names[text] for text in theirs.names.texts], dtype=np.int32)
    lanes = np.array([ours.lanes[pair] for pair in theirs.lanes.pairs()], dtype=np.int32)
    ours.lanes.add_names(theirs.lanes)
    for text, count in theirs.category_counts.items():
        ours.category_counts[text] = ours.category_counts.get(text, 0) + count

    for batch in batches.values():
        for columns in (batch.complete, batch.memory, batch.begin_end):
            for key, numbers in (("name", names), ("lane", lanes)):
                if key in columns:
                    columns[key] = numbers[columns[key]]
        for key in INTERNED & batch.sparse.keys():
            rows, values = batch.sparse[key]
            batch.sparse[key] = (rows, names[values])
        for key in INTERNED & batch.begin_end.keys():
            numbers = batch.begin_end[key]
            has = numbers != MISSING
            numbers[has] = names[numbers[has]]


def assemble(batches: Batches, interned: InternTables) -> TraceTables:
    """Join all batches of a trace.

    Args:
        batches: Emptied on the way, so that nothing is in memory twice.
        interned: The tables that their numbers refer to.
    """
    ordered = [batches[position] for position in sorted(batches)]
    batches.clear()
    first_positions = np.cumsum([0, *(batch.n_events for batch in ordered)])
    first_rows = np.cumsum([0, *(batch.n_complete for batch in ordered)])
    for batch, first_position in zip(ordered, first_positions.tolist(), strict=False):
        for columns in (batch.complete, batch.memory, batch.begin_end):
            if columns:
                columns["position"] += np.int32(first_position)

    sparse = {key: _pop_sparse(ordered, first_rows, key) for key in SPARSE}
    complete = {key: _pop([b.complete for b in ordered], key) for key in COMPLETE}
    memory = {key: _pop([b.memory for b in ordered], key) for key in (*_COMMON, *MEMORY)}
    parts = [b.begin_end for b in ordered]
    begin_end = {key: _pop(parts, key) for key in (*_BEGIN_END, "begins", *SPARSE)}

    tables = _build_tables(complete, sparse, memory, begin_end, interned)
    release_free_memory()
    return tables


def _build_tables(
    columns: Columns, sparse: _Sparse, memory: Columns, begin_end: Columns, interned: InternTables
) -> TraceTables:
    n_unpaired = 0
    if len(begin_end["ts_ns"]):
        paired, n_unpaired = _pair_begin_end(begin_end)
        sparse = _add_paired(sparse, paired, len(columns["ts_ns"]))
        columns = {key: np.concatenate((columns[key], paired[key])) for key in columns}
    columns["lane"] = _move_to_callers(columns, interned.lanes.pairs())

    # Invalid events are removed before the start is taken, which one of them may be.
    invalid, is_valid = find_invalid_times(columns, interned.names.texts)
    if invalid:
        new_rows = np.cumsum(is_valid) - 1
        columns = {key: column[is_valid] for key, column in columns.items()}
        for key, (rows, values) in sparse.items():
            stays = is_valid[rows]
            sparse[key] = (new_rows[rows[stays]], values[stays])
    is_timed = memory["ts_ns"] != MISSING
    memory = {key: column[is_timed] for key, column in memory.items()}

    starts = [column.min() for column in (columns["ts_ns"], memory["ts_ns"]) if len(column)]
    start_ns = int(min(starts, default=0))
    columns["ts_ns"] -= start_ns
    memory["ts_ns"] -= start_ns

    table: dict[str, Any] = {key: _freeze(key, columns[key]) for key in COMPLETE}
    table |= {key: freeze_sparse(*sparse.pop(key)) for key in SPARSE}
    names = tuple(interned.names.texts)
    events = EventTable(names=names, lanes=interned.lanes.lanes(), **table)
    listed = invalid[:_MAX_LISTED]
    return TraceTables(
        events, _build_memory_table(memory), start_ns, listed, len(invalid), n_unpaired
    )


def _pair_begin_end(events: Columns) -> tuple[Columns, int]:
    """Pair every end event with the last unpaired begin event before it on its lane.

    Args:
        events: Begin and end events, as :class:`~profkit.readers.kineto.batch.Batch` has them.

    Source: Trace Event Format, "Duration Events": begins and ends of a thread nest, and of the
    arguments of both the end's win where the two have the same key.

    Returns:
        The columns of complete events, with the columns of :data:`SPARSE` dense, and the number of
        unpaired events.
    """
    starts, lanes, begins = events["ts_ns"], events["lane"], events["begins"]
    is_timed = starts != MISSING
    order = np.lexsort((events["position"], starts, lanes))

    # A stack of the open begin events of one lane after the other.
    begun: list[int] = []
    pairs: list[tuple[int, int]] = []
    lane = None
    for i in order[is_timed[order]].tolist():
        if lanes[i] != lane:
            lane = lanes[i]
            begun.clear()
        if begins[i]:
            begun.append(i)
        elif begun:
            pairs.append((begun.pop(), i))
    pairs.sort()

    first = np.array([begin for begin, _ in pairs], dtype=np.intp)
    last = np.array([end for _, end in pairs], dtype=np.intp)
    columns = {key: events[key][first] for key in events if key != "begins"}
    columns["dur_ns"] = starts[last] - starts[first]

    # The argument that shows that the host made an XPU sync may be the end's.
    category, end_category = columns["category"], events["category"][last]
    is_call = (category == Category.DEVICE_SYNC) & (end_category == Category.DRIVER)
    category = np.where(is_call, Category.DRIVER, category)

    # So may be the argument that shows that the event did not finish.
    is_unfinished = (category == Category.UNFINISHED) | (end_category == Category.UNFINISHED)
    columns["category"] = np.where(is_unfinished, Category.UNFINISHED, category)
    columns["dur_ns"] = np.where(is_unfinished, 0, columns["dur_ns"])

    for key in SPARSE:
        end_values = events[key][last]
        columns[key] = np.where(end_values == MISSING, columns[key], end_values)
    return columns, len(starts) - 2 * len(pairs)


def _add_paired(sparse: _Sparse, paired: Columns, first_row: int) -> _Sparse:
    """Add the sparse values of paired events, as far as their category can have them.

    The paired events are complete events from ``first_row`` on.
    """
    joined = {}
    for key, (rows, values) in sparse.items():
        has = (paired[key] != MISSING) & np.isin(paired["category"], categories_with(key))
        new_rows = np.flatnonzero(has).astype(np.int32) + np.int32(first_row)
        joined[key] = (np.concatenate((rows, new_rows)), np.concatenate((values, paired[key][has])))
    return joined


def _move_to_callers(columns: Columns, lanes: Sequence[tuple[str, str]]) -> Int32s:
    """Return the lane of every event, with calls of process -1 on the lane of the calling thread.

    An XPU sync is written with its calling thread but with process -1. On a lane of that process
    it would not be inside any operator.

    Args:
        columns: ``lane`` and ``category``, each of shape ``(n,)``.
        lanes: Process and thread of each lane, by number.

    Source: ``libkineto/src/plugin/xpupti/XpuptiActivityHandlers.cpp``, which gives such an
    activity the device -1.

    Returns:
        Shape ``(n,)``. A call stays where it is if its thread's number occurs in several processes
        or in none.
    """
    lane: Int32s = columns["lane"]
    misplaced = [number for number, (process, _) in enumerate(lanes) if process == _NO_PROCESS]
    if not misplaced:
        return lane
    call_rows = np.flatnonzero(np.isin(columns["category"], HOST_CALLS))
    call_rows = call_rows[np.isin(lane[call_rows], misplaced)]
    if not len(call_rows):
        return lane

    is_host = np.isin(columns["category"], (*RECORD_FUNCTIONS, *HOST_CALLS))
    lanes_by_thread: dict[str, list[int]] = {}
    for number in np.unique(lane[is_host]).tolist():
        process, thread = lanes[number]
        if process != _NO_PROCESS:
            lanes_by_thread.setdefault(thread, []).append(number)

    caller_lane = np.arange(len(lanes), dtype=np.int32)
    for number in misplaced:
        candidates = lanes_by_thread.get(lanes[number][1], [])
        if len(candidates) == 1:
            caller_lane[number] = candidates[0]
    lane = lane.copy()
    lane[call_rows] = caller_lane[lane[call_rows]]
    return lane


def _pop(parts: list[Columns], key: str) -> npt.NDArray[Any]:
    """Remove a column from all batches and join it."""
    columns = [part.pop(key) for part in parts if key in part]
    if not columns:
        return np.zeros(0, dtype=np.int64)

    # The parts are freed at once: a large trace has tens of columns, each of them large.
    joined = np.concatenate(columns)
    columns.clear()
    release_free_memory()
    return joined


def _pop_sparse(
    batches: list[Batch], first_rows: Int64s, key: str
) -> tuple[Int32s, npt.NDArray[Any]]:
    """Remove a sparse column from all batches and join its rows and values."""
    rows, values = [], []
    for batch, first_row in zip(batches, first_rows.tolist(), strict=False):
        if key in batch.sparse:
            batch_rows, batch_values = batch.sparse.pop(key)
            rows.append(batch_rows + np.int32(first_row))
            values.append(batch_values)
    if not rows:
        return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
    return np.concatenate(rows), np.concatenate(values)


def freeze_sparse(rows: Int32s, values: npt.NDArray[Any]) -> SparseColumn:
    """Return a read-only column of some values."""
    rows.flags.writeable = values.flags.writeable = False
    return SparseColumn(rows, values)


def _freeze(key: str, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    column = column.astype(DTYPES.get(key, np.int64), copy=False)
    column.flags.writeable = False
    return column


def _build_memory_table(columns: Columns) -> MemoryTable:
    order = np.argsort(columns["ts_ns"], kind="stable")
    ordered = {key: column[order] for key, column in columns.items()}
    # An allocation that names no device is on the host.
    for key, default in (("device_type", _HOST_TYPE), ("device", _HOST_DEVICE)):
        ordered[key] = np.where(ordered[key] == MISSING, default, ordered[key])
    return MemoryTable(**{key: _freeze(key, column) for key, column in ordered.items()})
