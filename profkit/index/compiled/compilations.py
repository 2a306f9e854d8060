"""When ``torch.compile`` compiled, and where what it had compiled ran.

Source: ``torch/_dynamo/utils.py`` (``dynamo_timed``, ``ChromiumEventLogger``) and
``torch/_dynamo/convert_frame.py`` name the rows of compiling;
``torch/csrc/dynamo/eval_frame_cpp.cpp`` and ``GuardedCode.trace_annotation`` those of running.
"""

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from profkit.index.host.nesting import CallTree
from profkit.index.intervals import complement, union
from profkit.index.runtime_calls import rows_named
from profkit.model.events import NO_ROW, Category, EventTable, Int32s, Int64s, Mask, Rows
from profkit.model.torch_names import (
    COMPILE_ID,
    COMPILED_REGION,
    COMPILING,
    COMPILING_FUNCTION,
    DYNAMO_OVERHEAD,
    RESUMED,
)

_RESUMED: Final = re.compile("|".join(RESUMED))


@dataclass(frozen=True)
class Compilations:
    """Times that something was compiled, in the order of time.

    Attributes:
        rows: Their rows, none within another. Shape ``(n,)``.
        is_function: Those of a function, and not of a backward pass alone. Shape ``(n,)``.
        numbers: torch's number of each, such as ``3/1``; empty where it is not known.
    """

    rows: Rows
    is_function: Mask
    numbers: tuple[str, ...]


@dataclass(frozen=True)
class CompiledRuns:
    """Runs of what functions were compiled to, in the order of the table.

    Attributes:
        rows: Their rows. Shape ``(n,)``.
        numbers: torch's number of each, such as ``3/1``; empty before torch 2.5.
        around: Place of the innermost one that each is within, or -1. Shape ``(n,)``.
        root: Place of the outermost one around each, or its own. Shape ``(n,)``.
        has_ops: Which of them run operators of their own. Shape ``(n,)``.
        resumed_by: Row of the Python call in each that goes on behind the end of a graph, or -1.
            Shape ``(n,)``.
        works: Operators that compute, and not those that only mark compiling and running. Over all
            rows.
    """

    rows: Rows
    numbers: tuple[str, ...]
    around: Int32s
    root: Int32s
    has_ops: Mask
    resumed_by: Int32s
    works: Mask


def _host(events: EventTable, pattern: re.Pattern[str]) -> Mask:
    """Operators and annotations on the host whose names match. Shape ``(n,)``."""
    return rows_named(events, pattern, Category.OP, Category.ANNOTATION)


def compilations(events: EventTable, tree: CallTree) -> Compilations:
    """Find what was compiled.

    A function's number is in its row since torch 2.13; else it is that of what runs next on the
    thread, which is what it was compiled to.
    """
    compiling = _host(events, COMPILING)
    if not compiling.any():
        nothing = np.zeros(0, dtype=np.intp)
        return Compilations(nothing, nothing.astype(np.bool_), ())
    outermost = tree.outermost(compiling)
    rows = np.flatnonzero(outermost == np.arange(len(events)))
    rows = rows[np.argsort(events.ts_ns[rows], kind="stable")]
    of_function = np.unique(outermost[_host(events, COMPILING_FUNCTION)])
    is_function = np.isin(rows, of_function)
    told = dict(_numbers_told(events, outermost))
    next_run = _next_runs(events, rows[is_function])
    numbers = tuple(told.get(row, "") or next_run.get(row, "") for row in rows.tolist())
    return Compilations(rows, is_function, numbers)


def _numbers_told(events: EventTable, outermost: Int32s) -> list[tuple[int, str]]:
    """The row of each time that tells its number, and the number."""
    found = []
    for row in np.flatnonzero(_host(events, COMPILE_ID)).tolist():
        match = COMPILE_ID.match(events.name_of(row))
        if match is not None and outermost[row] != NO_ROW:
            found.append((int(outermost[row]), match["number"]))
    return found


def _next_runs(events: EventTable, rows: Rows) -> dict[int, str]:
    """The number of what runs first on its thread after each, if nothing is compiled before."""
    runs = np.flatnonzero(_host(events, COMPILED_REGION))
    found: dict[int, str] = {}
    for lane in np.unique(events.lane[rows]).tolist():
        here = rows[events.lane[rows] == lane]
        there = runs[events.lane[runs] == lane]
        there = there[np.argsort(events.ts_ns[there], kind="stable")]
        if not len(there):
            continue
        place = np.searchsorted(events.ts_ns[there], events.end_ns[here])
        until = np.append(events.ts_ns[here][1:], np.iinfo(np.int64).max)
        at = np.minimum(place, len(there) - 1)
        follows = (place < len(there)) & (events.ts_ns[there[at]] < until)
        numbers = _numbers_of(events, there[at[follows]])
        found.update(zip(here[follows].tolist(), numbers, strict=True))
    return found


def _numbers_of(events: EventTable, rows: Rows) -> tuple[str, ...]:
    """The number of each run."""
    names, place = np.unique(events.name[rows], return_inverse=True)
    matches = (COMPILED_REGION.match(events.names[name]) for name in names.tolist())
    numbers = [(match["number"] or "") if match is not None else "" for match in matches]
    return tuple(numbers[at] for at in place.tolist())


def compiled_runs(events: EventTable, tree: CallTree) -> CompiledRuns:
    """Find where what was compiled ran."""
    is_region = _host(events, COMPILED_REGION)
    rows = np.flatnonzero(is_region)
    if not len(rows):
        nowhere = np.zeros(0, dtype=np.int32)
        return CompiledRuns(rows, (), nowhere, nowhere, rows > 0, nowhere, is_region)
    above, outermost = tree.enclosing(is_region), tree.outermost(is_region)
    around = np.where(above[rows] == NO_ROW, NO_ROW, np.searchsorted(rows, above[rows]))
    works = _works(events, tree)
    nearest = tree.nearest(is_region)
    resumed_by = np.full(len(rows), NO_ROW, dtype=np.int32)
    resumes = np.flatnonzero(rows_named(events, _RESUMED, Category.PYTHON))
    # A function that goes on within another is in a region of its own.
    resumes = resumes[nearest[resumes] != NO_ROW][::-1]
    resumed_by[np.searchsorted(rows, nearest[resumes])] = resumes
    return CompiledRuns(
        rows=rows,
        numbers=_numbers_of(events, rows),
        around=around.astype(np.int32),
        root=np.searchsorted(rows, outermost[rows]).astype(np.int32),
        has_ops=np.isin(rows, nearest[works]),
        resumed_by=resumed_by,
        works=works,
    )


def _works(events: EventTable, tree: CallTree) -> Mask:
    ops = events.category == Category.OP
    compiling = tree.nearest(_host(events, COMPILING)) != NO_ROW
    marks = _host(events, COMPILED_REGION) | _host(events, DYNAMO_OVERHEAD)
    return np.asarray(ops & ~compiling & ~marks)


def gaps_between_graphs(
    events: EventTable, found: CompiledRuns, places: Rows
) -> tuple[Int64s, Int64s]:
    """Time between operators of compiled functions, around where some of their runs begin.

    It is what Python takes to leave one graph, to do what no graph can, and to enter the next.

    Args:
        found: All runs.
        places: Which of them: each begins behind the end of a graph. Shape ``(k,)``.

    Returns:
        Starts and ends in nanoseconds, which are alike where no time is. Shape ``(k,)`` each.
    """
    begins, outer = found.rows[places], found.rows[found.root[places]]
    starts = np.zeros(len(places), dtype=np.int64)
    ends = np.zeros(len(places), dtype=np.int64)
    for lane in np.unique(events.lane[begins]).tolist():
        here = np.flatnonzero(events.lane[begins] == lane)
        at_ns, calls = events.ts_ns[begins[here]], outer[here]
        ops = np.flatnonzero(found.works & (events.lane == lane))
        busy = union(events.ts_ns[ops], events.end_ns[ops])
        first, last = int(events.ts_ns[calls].min()), int(events.end_ns[calls].max())
        pauses = complement(busy, first, last)
        if not len(pauses):
            continue
        place = np.searchsorted(pauses.starts_ns, at_ns, side="right") - 1
        held = (place >= 0) & (pauses.ends_ns[np.maximum(place, 0)] >= at_ns)
        here, place, calls = here[held], place[held], calls[held]
        starts[here] = np.maximum(pauses.starts_ns[place], events.ts_ns[calls])
        ends[here] = np.minimum(pauses.ends_ns[place], events.end_ns[calls])
    return starts, ends
