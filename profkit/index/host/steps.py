"""The steps of a recording, and the waits for data."""

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.distinct import distinct
from profkit.index.host.nesting import CallTree
from profkit.index.runtime_calls import are_optimizer_steps, rows_named, updates_begin_ns
from profkit.model.events import (
    HOST_CALLS,
    NO_ROW,
    PROGRAM,
    Category,
    EventTable,
    Int32s,
    Int64s,
    Mask,
    Rows,
)
from profkit.model.report import StepOrigin
from profkit.model.torch_names import DATA_WAITS, FRAMING, MARKS, STEP

NO_STEP: Final = -1
_ANNOTATED: Final = ("profiler", "entry")
_FEW: Final = 0.1
"""Share of the other steps' operators below which a short first or last step was cut off. The
remnant that torch writes when a loop has ended contains a few at most."""


@dataclass(frozen=True)
class Steps:
    """The complete steps in time order.

    Attributes:
        rows: The annotation of each step, or the mark that delimits a step found by marks. Shape
            ``(s,)``.
        names: Their names.
        starts_ns: Shape ``(s,)``.
        ends_ns: Shape ``(s,)``.
        origin: What delimits them, as in :class:`~profkit.model.report.Source`.
        mark: The name of that region or module; empty for other origins.
        n_incomplete: Number of steps that the window cut off, and which are excluded.
        n_disturbed: Number of steps that other programs disturbed, and which are excluded.
    """

    rows: Rows
    names: tuple[str, ...]
    starts_ns: Int64s
    ends_ns: Int64s
    origin: StepOrigin = "profiler"
    mark: str = ""
    n_incomplete: int = 0
    n_disturbed: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def total_ns(self) -> int:
        """Return the time of all steps."""
        return int((self.ends_ns - self.starts_ns).sum())

    @property
    def annotations(self) -> Rows:
        """Return the rows of the steps themselves, without any if marks delimit the steps."""
        return self.rows if self.origin in _ANNOTATED else self.rows[:0]

    def of(self, at_ns: Int64s) -> Int32s:
        """Return the step of each moment, or :data:`NO_STEP`. Shape of ``at_ns``."""
        if not len(self.rows):
            return np.full(len(at_ns), NO_STEP, dtype=np.int32)
        place = np.searchsorted(self.starts_ns, at_ns, side="right") - 1
        within = (place >= 0) & (at_ns < self.ends_ns[np.maximum(place, 0)])
        return np.where(within, place, NO_STEP).astype(np.int32)


def divide_by_steps(total: float, n_steps: int) -> int | None:
    """Return a total per step, rounded; None without steps."""
    return round(total / n_steps) if n_steps else None


def find_annotated_steps(
    events: EventTable, *, entry_name: str | None = None, open_step: str = ""
) -> Steps:
    """Find the steps that the recording names: ``ProfilerStep#N``.

    In a recording by another program, the first and the last step may be a remnant that the window
    cut off; such steps are excluded.

    Args:
        entry_name: Annotation that marks a step where there is no ``ProfilerStep``: profkit names
            each entry of a block after its capture. None for recordings by other programs.
        open_step: Name of the step that was incomplete when the window ended, and is excluded. Of
            entries of a block, which all have one name, it is the last: what follows the last
            ``step()``, and often is nothing.
    """
    rows = np.flatnonzero(rows_named(events, STEP, Category.ANNOTATION, Category.OP))
    rows = events.sort_by_start(rows)

    n_recorded = len(rows) + int(np.count_nonzero(rows_named(events, STEP, Category.UNFINISHED)))

    is_whole = [events.name_of(row) != open_step for row in rows.tolist()]
    rows = rows[np.array(is_whole, dtype=np.bool_)]
    # profkit begins and ends its recordings between steps, other programs anywhere.
    if entry_name is None:
        rows = rows[find_complete_steps(events, events.ts_ns[rows], events.end_ns[rows])]

    n_incomplete = n_recorded - len(rows)
    origin: StepOrigin = "profiler"
    if not len(rows) and entry_name is not None:
        entry = re.compile(rf"^{re.escape(entry_name)}\Z")
        origin = "entry"
        rows = outermost(events, np.flatnonzero(rows_named(events, entry, Category.ANNOTATION)))
        n_incomplete += int(np.count_nonzero(rows_named(events, entry, Category.UNFINISHED)))
        if open_step == entry_name and len(rows) > 1:
            rows = events.sort_by_start(rows)
            n_incomplete += _has_work(events, int(rows[-1]))
            rows = rows[:-1]

    return Steps(
        rows=rows,
        names=tuple(events.name_of(row) for row in rows.tolist()),
        starts_ns=events.ts_ns[rows],
        ends_ns=events.end_ns[rows],
        origin=origin,
        n_incomplete=n_incomplete,
    )


def leave_out_steps(steps: Steps, names: Collection[str]) -> Steps:
    """Leave out the steps of some names, unless these are all."""
    is_kept = np.array([name not in names for name in steps.names], dtype=np.bool_)
    if is_kept.all() or not is_kept.any():
        return steps
    return replace(
        steps,
        rows=steps.rows[is_kept],
        names=tuple(name for name in steps.names if name not in names),
        starts_ns=steps.starts_ns[is_kept],
        ends_ns=steps.ends_ns[is_kept],
        n_disturbed=int(np.count_nonzero(~is_kept)),
    )


def _has_work(events: EventTable, row: int) -> bool:
    """Tell whether anything of the program is within an event."""
    is_within = (events.ts_ns >= events.ts_ns[row]) & (events.end_ns <= events.end_ns[row])
    is_within[row] = False
    return bool((is_within & np.isin(events.category, PROGRAM)).any())


def without_own_edges(events: EventTable, steps: Steps) -> Steps:
    """Let steps begin after and end before profkit's work at their edges.

    Within a step, profkit's time is excluded from the figures: see ``Context.own_time``.
    """
    is_profkit = events.category == Category.PROFKIT
    if not is_profkit.any() or not len(steps):
        return steps

    starts_ns, ends_ns = steps.starts_ns.copy(), steps.ends_ns.copy()
    is_activity = np.isin(events.category, PROGRAM)
    is_activity[steps.annotations] = False
    for lane in distinct(events.lane[steps.rows]).tolist():
        own_rows = np.flatnonzero(is_profkit & (events.lane == lane))
        activity_rows = np.flatnonzero(is_activity & (events.lane == lane))
        for i in np.flatnonzero(events.lane[steps.rows] == lane).tolist():
            starts_ns[i], ends_ns[i] = _trim_period(
                events, own_rows, activity_rows, int(starts_ns[i]), int(ends_ns[i])
            )
    return replace(steps, starts_ns=starts_ns, ends_ns=ends_ns)


def _trim_period(
    events: EventTable, own_rows: Rows, activity_rows: Rows, start_ns: int, end_ns: int
) -> tuple[int, int]:
    """Trim profkit's work at the edges of a period.

    Args:
        own_rows: Rows of profkit's work on the thread.
        activity_rows: Rows of the program's events on the thread.
    """
    begins, ends = events.ts_ns[activity_rows], events.end_ns[activity_rows]
    is_within = (begins >= start_ns) & (ends <= end_ns)
    # Work of profkit before the first or after the last event of the program is at an edge.
    first_ns = int(begins[is_within].min(initial=end_ns))
    last_ns = int(ends[is_within].max(initial=start_ns))

    own_begins, own_ends = events.ts_ns[own_rows], events.end_ns[own_rows]
    leading = (own_begins >= start_ns) & (own_ends <= first_ns)
    trailing = (own_begins >= last_ns) & (own_ends <= end_ns)

    trimmed = (
        int(own_ends[leading].max(initial=start_ns)),
        int(own_begins[trailing].min(initial=end_ns)),
    )
    return trimmed if trimmed[0] < trimmed[1] else (start_ns, end_ns)


def outermost(events: EventTable, rows: Rows) -> Rows:
    """Select the rows of a thread that begin after all earlier ones have ended, in time order."""
    # Of events with the same start the longest comes first: it contains the others.
    rows = rows[np.lexsort((-events.dur_ns[rows], events.ts_ns[rows]))]
    latest_end = np.maximum.accumulate(events.end_ns[rows])
    is_outermost = np.ones(len(rows), dtype=np.bool_)
    is_outermost[1:] = events.ts_ns[rows[1:]] >= latest_end[:-1]
    return np.asarray(rows[is_outermost])


def find_complete_steps(events: EventTable, starts_ns: Int64s, ends_ns: Int64s) -> Mask:
    """Find the steps that the window did not cut off: a first or last one may lack something.

    It may lack a mark of the loader or the optimizer that all others contain, or be shorter than
    all others and have less than a tenth of their operators. A single step was cut off if nothing
    ran in it, although the recording has operators.

    Args:
        starts_ns: Starts of the steps, ascending. Shape ``(s,)``.
        ends_ns: Shape ``(s,)``.
    """
    is_complete = np.ones(len(starts_ns), dtype=np.bool_)
    if not len(starts_ns):
        return is_complete

    work = Work.of(events)
    counts = work.count_between(starts_ns, ends_ns)
    if len(counts) == 1:
        is_complete[0] = counts[0] > 0 or not len(work.starts_ns)
        return is_complete

    lengths_ns = ends_ns - starts_ns
    marks = rows_named(events, MARKS, Category.ANNOTATION, Category.OP)
    names = distinct(events.name[marks]).tolist()
    of_marks = [np.sort(events.ts_ns[marks & (events.name == name)]) for name in names]
    has_marks = np.array([_count_between(mark_ns, starts_ns, ends_ns) > 0 for mark_ns in of_marks])

    # Only the window's ends cut steps off, so the steps between are the measure.
    for number in (0, len(counts) - 1):
        is_other = is_complete.copy()
        is_other[number] = False
        if not is_other.any():
            continue

        lacks = counts[number] < _FEW * counts[is_other].min()
        lacks &= lengths_ns[number] < lengths_ns[is_other].min()
        if is_other.sum() > 1:
            lacks |= any(mark[is_other].all() and not mark[number] for mark in has_marks)
        is_complete[number] = not lacks
    return is_complete


@dataclass(frozen=True)
class Work:
    """When operators began, or runtime calls in a recording without operators.

    Attributes:
        starts_ns: Ascending. Shape ``(k,)``.
    """

    starts_ns: Int64s

    @classmethod
    def of(cls, events: EventTable) -> "Work":
        """Find the operators of all threads, without marks of the loader and the optimizer."""
        is_work = program_ops(events)
        # A recording of the device's activities alone has calls, but no operators.
        if not is_work.any():
            is_work = np.isin(events.category, HOST_CALLS)
        return cls(np.sort(events.ts_ns[is_work]))

    def count_between(self, starts_ns: Int64s, ends_ns: Int64s) -> Int64s:
        """Count how many began in each period. Shape of ``starts_ns``."""
        return _count_between(self.starts_ns, starts_ns, ends_ns)


def _count_between(at_ns: Int64s, starts_ns: Int64s, ends_ns: Int64s) -> Int64s:
    """Count the ascending moments in each period."""
    n_moments = np.searchsorted(at_ns, ends_ns) - np.searchsorted(at_ns, starts_ns)
    return np.asarray(np.maximum(n_moments, 0), dtype=np.int64)


def program_ops(events: EventTable) -> Mask:
    """Return which rows are operators, other than marks of the loader and the optimizer.

    Shape ``(n,)``.
    """
    return np.asarray((events.category == Category.OP) & ~rows_named(events, FRAMING, Category.OP))


def data_waits(events: EventTable) -> Rows:
    """Return the rows in which the program waits for its next batch, ascending."""
    return np.flatnonzero(rows_named(events, DATA_WAITS, Category.ANNOTATION, Category.OP))


def optimizer_steps(events: EventTable) -> Rows:
    """Return the calls of ``Optimizer.step``, ascending."""
    return np.flatnonzero(are_optimizer_steps(events))


def are_in_updates(events: EventTable, tree: CallTree) -> Mask:
    """Return which rows are in an optimizer's update, after its closure. Shape ``(n,)``."""
    is_step = are_optimizer_steps(events)
    steps, step_of = np.flatnonzero(is_step), tree.nearest(is_step)
    begin_ns = np.zeros(len(events), dtype=np.int64)
    begin_ns[steps] = updates_begin_ns(events, steps)
    return np.asarray((step_of != NO_ROW) & (events.ts_ns >= begin_ns[step_of]))
