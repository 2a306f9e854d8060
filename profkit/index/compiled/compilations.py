"""When ``torch.compile`` compiled functions, and where compiled functions ran.

Source: ``torch/_dynamo/utils.py`` (``dynamo_timed``, ``ChromiumEventLogger``) and
``torch/_dynamo/convert_frame.py`` name the rows of compiling.
``torch/csrc/dynamo/eval_frame_cpp.cpp`` and ``GuardedCode.trace_annotation`` name the runs.
"""

import re
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.columns import build_empty
from profkit.index.distinct import distinct
from profkit.index.host.nesting import CallTree
from profkit.index.intervals import complement, union
from profkit.index.runtime_calls import map_names, rows_named
from profkit.model.events import NO_ROW, Category, EventTable, Int32s, Int64s, Mask, Rows
from profkit.model.torch_names import (
    COMPILE_ID,
    COMPILED_REGION,
    COMPILING,
    COMPILING_FUNCTION,
    DYNAMO_OVERHEAD,
    RESUMED,
)
from profkit.patterns import regex

_RESUMED: Final = regex("|".join(RESUMED))


@dataclass(frozen=True)
class Compilations:
    """Compilations in time order.

    Attributes:
        rows: Outermost rows of each. Shape ``(n,)``.
        is_function: Whether it is a function, not only a backward graph. Shape ``(n,)``.
        numbers: Compile id of each, such as ``3/1``; empty where it is not known.
    """

    rows: Rows
    is_function: Mask
    numbers: tuple[str, ...]


@dataclass(frozen=True)
class CompiledRuns:
    """Runs of compiled functions, in row order.

    Attributes:
        rows: Shape ``(n,)``.
        numbers: Compile id of each, such as ``3/1``; empty before torch 2.5.
        parent: Index of the innermost enclosing run, or -1. Shape ``(n,)``.
        root: Index of the outermost enclosing run, or its own. Shape ``(n,)``.
        has_ops: Whether it runs operators itself. Shape ``(n,)``.
        resumed_by: Row of the Python call within it that resumes after a graph break, or -1.
            Shape ``(n,)``.
        computes: Operators that compute, excluding marks of compiling and running. Over all
            rows.
    """

    rows: Rows
    numbers: tuple[str, ...]
    parent: Int32s
    root: Int32s
    has_ops: Mask
    resumed_by: Int32s
    computes: Mask


def _host(events: EventTable, pattern: re.Pattern[str]) -> Mask:
    """Return the operators and annotations on the host whose names match. Shape ``(n,)``."""
    return rows_named(events, pattern, Category.OP, Category.ANNOTATION)


def find_compilations(events: EventTable, tree: CallTree) -> Compilations:
    """Find the compilations.

    The row of a function has its compile id since torch 2.13. Before that, the next compiled run on
    the thread, which runs the result, has it.
    """
    compiling = _host(events, COMPILING)
    if not compiling.any():
        return build_empty(Compilations)

    outermost = tree.outermost(compiling)
    rows = np.flatnonzero(outermost == np.arange(len(events)))
    rows = events.sort_by_start(rows)
    of_function = distinct(outermost[_host(events, COMPILING_FUNCTION)])
    is_function = np.isin(rows, of_function)

    recorded = dict(_find_recorded_numbers(events, outermost))
    next_run = _find_next_runs(events, rows[is_function])
    numbers = tuple(recorded.get(row, "") or next_run.get(row, "") for row in rows.tolist())
    return Compilations(rows, is_function, numbers)


def _find_recorded_numbers(events: EventTable, outermost: Int32s) -> list[tuple[int, str]]:
    """Find the row of each compilation with a recorded id, and the id."""
    numbers = []
    for row in np.flatnonzero(_host(events, COMPILE_ID)).tolist():
        match = COMPILE_ID.match(events.name_of(row))
        if match is not None and outermost[row] != NO_ROW:
            numbers.append((int(outermost[row]), match["number"]))
    return numbers


def _find_next_runs(events: EventTable, rows: Rows) -> dict[int, str]:
    """Find the id of the next run on each row's thread, up to the next compilation."""
    runs = np.flatnonzero(_host(events, COMPILED_REGION))
    number_of_row: dict[int, str] = {}
    for lane in distinct(events.lane[rows]).tolist():
        compiled = rows[events.lane[rows] == lane]
        thread_runs = runs[events.lane[runs] == lane]
        thread_runs = events.sort_by_start(thread_runs)
        if not len(thread_runs):
            continue

        place = np.searchsorted(events.ts_ns[thread_runs], events.end_ns[compiled])
        # A later compilation would make the next run its own.
        until = np.append(events.ts_ns[compiled][1:], np.iinfo(np.int64).max)
        at = np.minimum(place, len(thread_runs) - 1)
        follows = (place < len(thread_runs)) & (events.ts_ns[thread_runs[at]] < until)
        numbers = _numbers_of(events, thread_runs[at[follows]])
        number_of_row.update(zip(compiled[follows].tolist(), numbers, strict=True))
    return number_of_row


def _numbers_of(events: EventTable, rows: Rows) -> tuple[str, ...]:
    """Return the compile id of each run."""

    def find_number(name: str) -> str:
        match = COMPILED_REGION.match(name)
        return "" if match is None else match["number"] or ""

    return tuple(map_names(events, rows, find_number, np.object_).tolist())


def find_compiled_runs(events: EventTable, tree: CallTree) -> CompiledRuns:
    """Find the runs of compiled functions."""
    is_region = _host(events, COMPILED_REGION)
    rows = np.flatnonzero(is_region)
    if not len(rows):
        nowhere = np.zeros(0, dtype=np.int32)
        return CompiledRuns(rows, (), nowhere, nowhere, rows > 0, nowhere, is_region)

    # Each run has the operators to which no inner run is nearer.
    above, outermost = tree.enclosing(is_region), tree.outermost(is_region)
    parent = np.where(above[rows] == NO_ROW, NO_ROW, np.searchsorted(rows, above[rows]))
    computes = _find_computing(events, tree)
    nearest = tree.nearest(is_region)
    resumed_by = np.full(len(rows), NO_ROW, dtype=np.int32)

    resumes = np.flatnonzero(rows_named(events, _RESUMED, Category.PYTHON))
    # A resumed function within another has a region of its own.
    resumes = resumes[nearest[resumes] != NO_ROW][::-1]
    resumed_by[np.searchsorted(rows, nearest[resumes])] = resumes
    return CompiledRuns(
        rows=rows,
        numbers=_numbers_of(events, rows),
        parent=parent.astype(np.int32),
        root=np.searchsorted(rows, outermost[rows]).astype(np.int32),
        has_ops=np.isin(rows, nearest[computes]),
        resumed_by=resumed_by,
        computes=computes,
    )


def _find_computing(events: EventTable, tree: CallTree) -> Mask:
    ops = events.category == Category.OP
    compiling = tree.nearest(_host(events, COMPILING)) != NO_ROW
    marks = _host(events, COMPILED_REGION) | _host(events, DYNAMO_OVERHEAD)
    return np.asarray(ops & ~compiling & ~marks)


def find_gaps_between_graphs(
    events: EventTable, runs: CompiledRuns, places: Rows
) -> tuple[Int64s, Int64s]:
    """Find the time between operators of compiled functions around the begin of some runs.

    Python spends that time to leave one graph, to run code outside, and to enter the next graph.

    Args:
        runs: All runs.
        places: Indices of runs that begin after a graph break. Shape ``(k,)``.

    Returns:
        Starts and ends in nanoseconds, equal where there is no gap. Shape ``(k,)`` each.
    """
    begins, outer = runs.rows[places], runs.rows[runs.root[places]]
    starts = np.zeros(len(places), dtype=np.int64)
    ends = np.zeros(len(places), dtype=np.int64)

    for lane in distinct(events.lane[begins]).tolist():
        thread_places = np.flatnonzero(events.lane[begins] == lane)
        at_ns, calls = events.ts_ns[begins[thread_places]], outer[thread_places]
        ops = np.flatnonzero(runs.computes & (events.lane == lane))

        busy = union(events.ts_ns[ops], events.end_ns[ops])
        first, last = int(events.ts_ns[calls].min()), int(events.end_ns[calls].max())
        gaps = complement(busy, first, last)
        if not len(gaps):
            continue

        place = np.searchsorted(gaps.starts_ns, at_ns, side="right") - 1
        in_gap = (place >= 0) & (gaps.ends_ns[np.maximum(place, 0)] >= at_ns)
        thread_places, place, calls = thread_places[in_gap], place[in_gap], calls[in_gap]
        starts[thread_places] = np.maximum(gaps.starts_ns[place], events.ts_ns[calls])
        ends[thread_places] = np.minimum(gaps.ends_ns[place], events.end_ns[calls])
    return starts, ends
