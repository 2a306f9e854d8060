"""Takes profkit's own work out of a recording: the one place where it is decided.

A recording of profkit has calls of profkit in the program's threads. They are of four kinds:

- work: what profkit did itself, such as starting the profiler. It becomes one event of the category
  ``PROFKIT``, whose time is nobody's; all within it is concealed.
- wrappers: functions of profkit that call the program, such as a decorator. They are concealed, so
  that what they call is its caller's.
- what started the program: the command, click, runpy, down to the program's first frame. It is
  concealed.
- threads of profkit: all of their events are concealed.

Whether a call of profkit is work or a wrapper follows from what runs within it, so that it holds
for any version of profkit. Positions and times of the events stay.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from profkit.dataclass import dataclass
from profkit.model.capture_info import CaptureInfo
from profkit.model.events import Category, EventTable, Int64s, Mask, Rows
from profkit.model.own_code import (
    IMPORT_PREFIX,
    THREAD_PREFIX,
    is_monitoring_call,
    is_own_call,
    is_own_mark,
    is_program_call,
    is_users_call,
    starts_profiler,
    waits_for_own_thread,
)

_HOST: Final = (
    Category.OP,
    Category.ANNOTATION,
    Category.PYTHON,
    Category.RUNTIME,
    Category.DRIVER,
)
_HINT: Final = "profkit"
"""In the name of every call, mark and thread of profkit."""


def without_own_work(events: EventTable, capture: CaptureInfo | None) -> EventTable:
    """Return the events with those of profkit itself categorized as such."""
    users_files = capture.paths if capture is not None else {}
    is_mark = _rows_with(events, is_own_mark, Category.ANNOTATION, hint=_HINT)
    is_own = _rows_with(
        events, lambda name: is_own_call(name, users_files), Category.PYTHON, hint=_HINT
    )
    of_threads = [lane.thread.startswith(THREAD_PREFIX) for lane in events.lanes]
    if not (is_mark.any() or is_own.any() or any(of_threads)):
        return events

    changed = _Changed.of(events)
    is_host = np.isin(events.category, _HOST)
    masks = {
        "is_python": events.category == Category.PYTHON,
        "is_own": is_own,
        "is_mark": is_mark,
        "is_monitoring": _rows_with(events, is_monitoring_call, Category.PYTHON, hint=_HINT),
        "is_start": _rows_with(events, starts_profiler, Category.PYTHON),
        "is_program": _program_rows(events, users_files) & ~is_mark,
    }
    for number in np.unique(events.lane[is_mark | is_own]).tolist():
        rows = np.flatnonzero((events.lane == number) & is_host)
        _conceal_in_thread(_thread(events, rows, masks), changed)

    _conceal_new_threads(events, is_host, changed)
    is_of_thread = np.array(of_threads, dtype=np.bool_)[events.lane]
    copies = _rows_with(events, is_own_mark, Category.DEVICE_ANNOTATION, hint=_HINT)
    changed.conceal(np.flatnonzero((is_host & is_of_thread) | copies))
    return changed.table(events)


def _conceal_new_threads(events: EventTable, is_host: Mask, changed: "_Changed") -> None:
    """Conceal threads that run only while another one waits for profkit's work in a new thread.

    torch records their operators, but neither their names nor their Python calls.
    """
    waits = np.flatnonzero(_rows_with(events, waits_for_own_thread, Category.PYTHON, hint=_HINT))
    if not len(waits):
        return
    waits = waits[np.argsort(events.ts_ns[waits], kind="stable")]
    spans = _Spans.around(events.ts_ns[waits], events.end_ns[waits])
    rows = np.flatnonzero(is_host & ~np.isin(events.lane, events.lane[waits]))
    is_inside = spans.contain(events.ts_ns[rows], events.end_ns[rows])
    others = np.unique(events.lane[rows[~is_inside]])
    changed.conceal(rows[~np.isin(events.lane[rows], others)])


@dataclass(frozen=True)
class _Changed:
    """The columns of events that change. Shape ``(n,)``."""

    category: npt.NDArray[np.uint8]
    start_ns: Int64s
    length_ns: Int64s

    @classmethod
    def of(cls, events: EventTable) -> "_Changed":
        """Copy the columns of a table."""
        return cls(events.category.copy(), events.ts_ns.copy(), events.dur_ns.copy())

    def conceal(self, rows: Rows) -> None:
        """Take events out of all figures."""
        self.category[rows] = Category.CONCEALED

    def keep(self, row: int, start_ns: int, end_ns: int) -> None:
        """Keep an event as profkit's work, from one moment to another."""
        self.category[row] = Category.PROFKIT
        self.start_ns[row], self.length_ns[row] = start_ns, end_ns - start_ns

    def table(self, events: EventTable) -> EventTable:
        """Return the events with these columns."""
        for column in (self.category, self.start_ns, self.length_ns):
            column.flags.writeable = False
        return replace(events, category=self.category, ts_ns=self.start_ns, dur_ns=self.length_ns)


def _rows_with(
    events: EventTable, holds: Callable[[str], bool], *categories: Category, hint: str = ""
) -> Mask:
    """Find the rows of some categories whose name satisfies a condition.

    Args:
        hint: A text that each such name contains, which is quick to search for.
    """
    names = [hint in name and holds(name) for name in events.names]
    is_named = np.array(names, dtype=np.bool_)[events.name]
    return is_named & np.isin(events.category, categories)


def _program_rows(events: EventTable, users_files: Container[str]) -> Mask:
    """Find the rows that show that the program runs: operators, annotations, calls of its code."""
    is_call = _rows_with(events, lambda name: is_program_call(name, users_files), Category.PYTHON)
    # Profkit's imports run hooks of installed packages, which are not the program.
    is_import = _rows_with(events, lambda name: name.startswith(IMPORT_PREFIX), Category.PYTHON)
    for lane in np.unique(events.lane[is_import]).tolist():
        rows = np.flatnonzero(is_import & (events.lane == lane))
        rows = rows[np.argsort(events.ts_ns[rows], kind="stable")]
        imports = _Spans.around(events.ts_ns[rows], events.end_ns[rows])
        calls = np.flatnonzero(is_call & (events.lane == lane))
        is_call[calls[imports.contain(events.ts_ns[calls], events.end_ns[calls])]] = False
    is_users = _rows_with(events, lambda name: is_users_call(name, users_files), Category.PYTHON)
    is_call |= is_users
    return is_call | np.isin(events.category, (Category.OP, Category.ANNOTATION))


@dataclass(frozen=True)
class _Thread:
    """The host events of one thread by start, longest first, and what they show.

    Attributes:
        rows: Their rows. Shape ``(k,)``, that of all columns.
        is_python: Which are Python calls.
        is_own: Which are calls of profkit.
        is_mark: Which are annotations around its work.
        is_monitoring: Which calls of profkit are work in any case.
        is_start: Which are calls that start torch's profiler.
        is_program: Which show that the program runs.
    """

    rows: Rows
    start_ns: Int64s
    end_ns: Int64s
    is_python: Mask
    is_own: Mask
    is_mark: Mask
    is_monitoring: Mask
    is_start: Mask
    is_program: Mask


def _thread(events: EventTable, rows: Rows, masks: Mapping[str, Mask]) -> _Thread:
    """Order the host events of a thread.

    Args:
        rows: In any order.
        masks: The masks of a :class:`_Thread` by name, over all events.
    """
    rows = rows[np.lexsort((-events.dur_ns[rows], events.ts_ns[rows]))]
    columns = {name: mask[rows] for name, mask in masks.items()}
    return _Thread(rows, events.ts_ns[rows], events.end_ns[rows], **columns)


@dataclass(frozen=True)
class _Spans:
    """Disjoint times in ascending order: starts and ends of shape ``(s,)``."""

    start_ns: Int64s
    end_ns: Int64s

    @classmethod
    def around(cls, start_ns: Int64s, end_ns: Int64s) -> "_Spans":
        """Join times that overlap; starts ascend."""
        if not len(start_ns):
            return cls(start_ns, end_ns)
        latest = np.maximum.accumulate(end_ns)
        begins = np.append(True, start_ns[1:] > latest[:-1])
        first = np.flatnonzero(begins)
        return cls(start_ns[first], np.maximum.reduceat(end_ns, first))

    def number_at(self, at_ns: Int64s) -> Rows:
        """Return the span strictly within which each moment is, or -1."""
        if not len(self.start_ns):
            return np.full(len(at_ns), -1)
        place = np.searchsorted(self.start_ns, at_ns, side="left") - 1
        is_within = (place >= 0) & (at_ns < self.end_ns[np.maximum(place, 0)])
        return np.where(is_within, place, -1)

    def contain(self, start_ns: Int64s, end_ns: Int64s) -> Mask:
        """Whether each of some times is within one span."""
        if not len(self.start_ns):
            return np.zeros(len(start_ns), dtype=np.bool_)
        place = np.searchsorted(self.start_ns, start_ns, side="right") - 1
        return np.asarray((place >= 0) & (end_ns <= self.end_ns[np.maximum(place, 0)]))


def _contain_any(
    start_ns: Int64s, end_ns: Int64s, inner_start_ns: Int64s, inner_end_ns: Int64s
) -> Mask:
    """Whether each of some times contains one of others, whose starts ascend."""
    if not len(inner_start_ns):
        return np.zeros(len(start_ns), dtype=np.bool_)
    # The earliest end of all that begin at a moment or later.
    earliest = np.minimum.accumulate(inner_end_ns[::-1])[::-1]
    place = np.searchsorted(inner_start_ns, start_ns, side="left")
    has = place < len(inner_start_ns)
    return np.asarray(has & (earliest[np.minimum(place, len(earliest) - 1)] <= end_ns))


def _conceal_in_thread(thread: _Thread, table: _Changed) -> None:
    """Categorize profkit's events of one thread."""
    start_ns, end_ns = thread.start_ns, thread.end_ns

    # A call of profkit is work if nothing of the program runs within it.
    certain = thread.is_mark | thread.is_monitoring
    certain_spans = _Spans.around(start_ns[certain], end_ns[certain])
    in_certain = certain_spans.contain(start_ns, end_ns)
    program = thread.is_program & ~in_certain
    runs_program = _contain_any(start_ns, end_ns, start_ns[program], end_ns[program])
    is_work = certain | (thread.is_own & ~runs_program)
    work = _Spans.around(start_ns[is_work], end_ns[is_work])
    in_work = work.contain(start_ns, end_ns) & ~program

    # A thread that does nothing else is profkit's: only Python's start of the thread is outside.
    if not (program.any() or (~thread.is_python & ~in_work).any()):
        table.conceal(thread.rows)
        return

    # A call that started the profiler, and whose end was not recorded, is around the program too.
    wrappers = thread.is_own & ~is_work
    wrapped = _Spans.around(start_ns[wrappers], end_ns[wrappers])
    wrappers |= thread.is_start & runs_program & wrapped.contain(start_ns, end_ns)
    table.conceal(thread.rows[in_work | wrappers])
    _keep_work(thread, work, in_work, program, table)
    _conceal_launcher(thread, is_work, program, table)


def _keep_work(
    thread: _Thread, work: _Spans, in_work: Mask, program: Mask, table: _Changed
) -> None:
    """Keep one event for what profkit did, so that its time is not that of its caller.

    A call that opens or closes an annotation of the program is partly outside of it: of such a call
    those within it that are not are kept, and of the innermost one the part inside the annotation.
    """
    start_ns, end_ns = thread.start_ns, thread.end_ns
    is_cut = np.zeros(len(start_ns), dtype=np.bool_)
    first, last = work.number_at(start_ns), work.number_at(end_ns)
    for row in np.flatnonzero(program & (first != last)).tolist():
        for span, at_ns in ((int(first[row]), start_ns[row]), (int(last[row]), end_ns[row])):
            if span < 0:
                continue
            begin, end = np.searchsorted(start_ns, (work.start_ns[span], at_ns), side="left")
            around = np.arange(begin, end)[in_work[begin:end] & (end_ns[begin:end] > at_ns)]
            is_cut[around] = True
            if len(around):
                innermost = around[-1]
                opens = at_ns == start_ns[row]
                kept = (at_ns, end_ns[innermost]) if opens else (start_ns[innermost], at_ns)
                table.keep(thread.rows[innermost], *map(int, kept))

    whole = np.flatnonzero(in_work & ~is_cut)
    if len(whole):
        latest = np.maximum.accumulate(end_ns[whole])
        is_outermost = np.append(True, end_ns[whole][1:] > latest[:-1])
        table.category[thread.rows[whole[is_outermost]]] = Category.PROFKIT


def _conceal_launcher(thread: _Thread, is_work: Mask, program: Mask, table: _Changed) -> None:
    """Conceal the calls that started the program, above its first frame, and beside it."""
    start_ns, end_ns = thread.start_ns, thread.end_ns
    of_program = program & thread.is_python
    users = _Spans.around(start_ns[of_program], end_ns[of_program])
    is_outside = thread.is_python & ~users.contain(start_ns, end_ns)
    launches = is_outside & thread.is_own & ~is_work
    launch = _Spans.around(start_ns[launches], end_ns[launches])
    is_around = _contain_any(start_ns, end_ns, start_ns[launches], end_ns[launches])
    is_launcher = is_around | launch.contain(start_ns, end_ns)
    rows = thread.rows[is_outside & is_launcher]
    table.conceal(rows[table.category[rows] != Category.PROFKIT])
