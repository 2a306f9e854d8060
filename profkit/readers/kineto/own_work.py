"""Takes profkit's own work out of a recording: the one place where it is decided.

A recording by profkit has calls of profkit in the program's threads. They are of four kinds:

- work: profkit's own actions, such as starting the profiler. They become one event of the category
  ``PROFKIT``, whose time is not attributed to the program; all within it is concealed.
- wrappers: functions of profkit that call the program, such as a decorator. They are concealed, so
  that the calls within them belong to the caller of the wrapper.
- the launcher: the command, click, runpy, down to the program's first frame. It is concealed.
- threads of profkit: all of their events are concealed.

Whether a call of profkit is work or a wrapper follows from the calls within it, so that it holds
for any version of profkit. Positions and times of the events stay.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from profkit.dataclass import dataclass
from profkit.model.capture_info import CaptureInfo
from profkit.model.events import PROGRAM, RECORD_FUNCTIONS, Category, EventTable, Int64s, Mask, Rows
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

_HINT: Final = "profkit"
"""The text that the name of every call, mark and thread of profkit contains."""


def without_own_work(events: EventTable, capture: CaptureInfo | None) -> EventTable:
    """Return the events, with the events of profkit itself categorized as such."""
    users_files = capture.paths if capture is not None else {}
    is_mark = _find_named(events, is_own_mark, Category.ANNOTATION, hint=_HINT)
    is_own = _find_named(
        events, lambda name: is_own_call(name, users_files), Category.PYTHON, hint=_HINT
    )
    is_own_lane = [lane.thread.startswith(THREAD_PREFIX) for lane in events.lanes]
    if not (is_mark.any() or is_own.any() or any(is_own_lane)):
        return events

    changed = _Changed.of(events)
    is_host = np.isin(events.category, PROGRAM)
    masks = {
        "is_python": events.category == Category.PYTHON,
        "is_own": is_own,
        "is_mark": is_mark,
        "is_monitoring": _find_named(events, is_monitoring_call, Category.PYTHON, hint=_HINT),
        "is_start": _find_named(events, starts_profiler, Category.PYTHON),
        "is_program": _find_program(events, users_files) & ~is_mark,
    }
    for number in np.unique(events.lane[is_mark | is_own]).tolist():
        rows = np.flatnonzero((events.lane == number) & is_host)
        _conceal_in_thread(_order_thread(events, rows, masks), changed)

    # The device has a copy of each mark around which it worked.
    _conceal_new_threads(events, is_host, changed)
    is_in_own_lane = np.array(is_own_lane, dtype=np.bool_)[events.lane]
    is_copy = _find_named(events, is_own_mark, Category.DEVICE_ANNOTATION, hint=_HINT)
    changed.conceal(np.flatnonzero((is_host & is_in_own_lane) | is_copy))
    return changed.table(events)


def _conceal_new_threads(events: EventTable, is_host: Mask, changed: "_Changed") -> None:
    """Conceal threads that run only while another one waits for profkit's work in a new thread.

    torch records their operators, but neither their names nor their Python calls.
    """
    waits = np.flatnonzero(_find_named(events, waits_for_own_thread, Category.PYTHON, hint=_HINT))
    if not len(waits):
        return
    waits = events.sort_by_start(waits)
    spans = _Spans.around(events.ts_ns[waits], events.end_ns[waits])

    rows = np.flatnonzero(is_host & ~np.isin(events.lane, events.lane[waits]))
    is_inside = spans.contain(events.ts_ns[rows], events.end_ns[rows])
    program_lanes = np.unique(events.lane[rows[~is_inside]])
    changed.conceal(rows[~np.isin(events.lane[rows], program_lanes)])


@dataclass(frozen=True)
class _Changed:
    """The columns of all events that change. Shape ``(n,)``."""

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


def _find_named(
    events: EventTable, is_match: Callable[[str], bool], *categories: Category, hint: str = ""
) -> Mask:
    """Find the events of some categories whose name satisfies a condition. Shape ``(n,)``.

    Args:
        events: All events.
        is_match: The condition.
        categories: The categories.
        hint: A text that each such name contains, which is quick to search for.
    """
    names = [hint in name and is_match(name) for name in events.names]
    is_named = np.array(names, dtype=np.bool_)[events.name]
    return is_named & np.isin(events.category, categories)


def _find_program(events: EventTable, users_files: Container[str]) -> Mask:
    """Find the events that show that the program runs: operators, annotations, its calls."""
    is_call = _find_named(events, lambda name: is_program_call(name, users_files), Category.PYTHON)

    # Profkit's imports run hooks of installed packages, which are not the program.
    is_import = _find_named(events, lambda name: name.startswith(IMPORT_PREFIX), Category.PYTHON)
    for lane in np.unique(events.lane[is_import]).tolist():
        rows = np.flatnonzero(is_import & (events.lane == lane))
        rows = events.sort_by_start(rows)
        imports = _Spans.around(events.ts_ns[rows], events.end_ns[rows])
        calls = np.flatnonzero(is_call & (events.lane == lane))
        is_call[calls[imports.contain(events.ts_ns[calls], events.end_ns[calls])]] = False

    # Code of the user is the program wherever it runs.
    is_users = _find_named(events, lambda name: is_users_call(name, users_files), Category.PYTHON)
    return is_call | is_users | np.isin(events.category, RECORD_FUNCTIONS)


@dataclass(frozen=True)
class _Thread:
    """The host events of one thread, ordered by start and then by length, longest first.

    Attributes:
        rows: Rows of the events. All columns have their shape, ``(k,)``.
        start_ns: Starts.
        end_ns: Ends.
        is_python: Python calls.
        is_own: Calls of profkit.
        is_mark: Annotations around profkit's work.
        is_monitoring: Calls of profkit that are work in any case.
        is_start: Calls that start torch's profiler.
        is_program: Events that show that the program runs.
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


def _order_thread(events: EventTable, rows: Rows, masks: Mapping[str, Mask]) -> _Thread:
    """Order the host events of a thread.

    Args:
        events: All events.
        rows: The events of the thread, in any order.
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
        """Return whether each of some times is within one span."""
        if not len(self.start_ns):
            return np.zeros(len(start_ns), dtype=np.bool_)
        place = np.searchsorted(self.start_ns, start_ns, side="right") - 1
        return np.asarray((place >= 0) & (end_ns <= self.end_ns[np.maximum(place, 0)]))


def _contain_any(
    start_ns: Int64s, end_ns: Int64s, inner_start_ns: Int64s, inner_end_ns: Int64s
) -> Mask:
    """Return whether each of some times contains an inner time; the inner starts ascend."""
    if not len(inner_start_ns):
        return np.zeros(len(start_ns), dtype=np.bool_)

    # A time contains one of those that begin later if the earliest of their ends is within it.
    earliest_end = np.minimum.accumulate(inner_end_ns[::-1])[::-1]
    place = np.searchsorted(inner_start_ns, start_ns, side="left")
    has_later = place < len(inner_start_ns)
    place = np.minimum(place, len(earliest_end) - 1)
    return np.asarray(has_later & (earliest_end[place] <= end_ns))


def _conceal_in_thread(thread: _Thread, changed: _Changed) -> None:
    """Categorize profkit's events of one thread."""
    start_ns, end_ns = thread.start_ns, thread.end_ns

    # A call of profkit is work if nothing of the program runs within it.
    is_certain = thread.is_mark | thread.is_monitoring
    certain_spans = _Spans.around(start_ns[is_certain], end_ns[is_certain])
    is_program = thread.is_program & ~certain_spans.contain(start_ns, end_ns)
    runs_program = _contain_any(start_ns, end_ns, start_ns[is_program], end_ns[is_program])
    is_work = is_certain | (thread.is_own & ~runs_program)
    work = _Spans.around(start_ns[is_work], end_ns[is_work])
    is_in_work = work.contain(start_ns, end_ns) & ~is_program

    # A thread that does nothing else is profkit's: only Python's start of the thread is outside.
    if not (is_program.any() or (~thread.is_python & ~is_in_work).any()):
        changed.conceal(thread.rows)
        return

    # A call that started the profiler, and whose end was not recorded, is around the program too.
    is_wrapper = thread.is_own & ~is_work
    wrapped = _Spans.around(start_ns[is_wrapper], end_ns[is_wrapper])
    is_wrapper |= thread.is_start & runs_program & wrapped.contain(start_ns, end_ns)
    changed.conceal(thread.rows[is_in_work | is_wrapper])
    _keep_work(thread, work, is_in_work, is_program, changed)
    _conceal_launcher(thread, is_work, is_program, changed)


def _keep_work(
    thread: _Thread, work: _Spans, is_in_work: Mask, is_program: Mask, changed: _Changed
) -> None:
    """Keep one event for each span of profkit's work, so that its caller is not charged for it.

    A call that opens or closes an annotation of the program is partly outside of the annotation.
    Such calls, one within the other, stay concealed, but the innermost keeps its part inside the
    annotation. Calls within them that are completely on one side are kept whole.
    """
    start_ns, end_ns = thread.start_ns, thread.end_ns
    is_cut = np.zeros(len(start_ns), dtype=np.bool_)

    # A program's event starts in one span of work and ends in another, or in none.
    start_span, end_span = work.number_at(start_ns), work.number_at(end_ns)
    for row in np.flatnonzero(is_program & (start_span != end_span)).tolist():
        sides = ((int(start_span[row]), start_ns[row]), (int(end_span[row]), end_ns[row]))
        for span, at_ns in sides:
            if span < 0:
                continue
            first, last = np.searchsorted(start_ns, (work.start_ns[span], at_ns), side="left")
            around = np.arange(first, last)[is_in_work[first:last] & (end_ns[first:last] > at_ns)]
            is_cut[around] = True
            if len(around):
                innermost = around[-1]
                opens = at_ns == start_ns[row]
                inside = (at_ns, end_ns[innermost]) if opens else (start_ns[innermost], at_ns)
                changed.keep(thread.rows[innermost], *map(int, inside))

    whole = np.flatnonzero(is_in_work & ~is_cut)
    if len(whole):
        latest = np.maximum.accumulate(end_ns[whole])
        is_outermost = np.append(True, end_ns[whole][1:] > latest[:-1])
        changed.category[thread.rows[whole[is_outermost]]] = Category.PROFKIT


def _conceal_launcher(thread: _Thread, is_work: Mask, is_program: Mask, changed: _Changed) -> None:
    """Conceal the calls that started the program, which are outside of its frames."""
    start_ns, end_ns = thread.start_ns, thread.end_ns
    is_call = is_program & thread.is_python
    program = _Spans.around(start_ns[is_call], end_ns[is_call])
    is_outside = thread.is_python & ~program.contain(start_ns, end_ns)

    # All that contains a launch, or is within one, belongs to the launcher: click and runpy too.
    is_launch = is_outside & thread.is_own & ~is_work
    launches = _Spans.around(start_ns[is_launch], end_ns[is_launch])
    is_around = _contain_any(start_ns, end_ns, start_ns[is_launch], end_ns[is_launch])
    is_launcher = is_around | launches.contain(start_ns, end_ns)
    rows = thread.rows[is_outside & is_launcher]
    changed.conceal(rows[changed.category[rows] != Category.PROFKIT])
