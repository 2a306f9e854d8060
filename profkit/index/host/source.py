"""The source line, operator and ``nn.Module`` of each event.

The source line is the innermost frame that is not torch, an installed package, the standard library
or generated code. It comes from the stacks of the window, from lines that profkit recorded with it,
or from lines of another step of the same loop.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.distinct import distinct
from profkit.index.host.frames import Ownership, is_library_function, ownership_of, parse_frame
from profkit.index.host.nesting import CallTree
from profkit.index.host.step_alignment import align_lines
from profkit.index.host.steps import Steps
from profkit.index.runtime_calls import names_matching, rows_named
from profkit.model.capture_info import CaptureInfo, OpLines
from profkit.model.events import (
    MISSING,
    NO_ROW,
    Category,
    EventTable,
    Int32s,
    Int64s,
    Mask,
    Rows,
    are_equally_long,
    is_within,
)
from profkit.model.location import COMPREHENSIONS, MODULE_LEVEL, Frame
from profkit.model.torch_names import BACKWARD, MODULE_PREFIX
from profkit.patterns import regex

NO_FRAME: Final = -1
_STARTING: Final = regex(
    r"(^|[/\\])torch[/\\]autograd[/\\]profiler\.py\(\d+\): (_start_trace|__enter__)$"
)
"""The innermost Python call when a recording begins."""
_CALLS: Final = (Category.PYTHON, Category.PROFKIT, Category.CONCEALED)
"""Python calls, also of profkit."""


@dataclass(frozen=True)
class SourceMap:
    """Where every host event comes from.

    Attributes:
        frames: Each frame once.
        modules: Each ``nn.Module`` once, with torch's name.
        frame: Index into ``frames`` of the innermost user frame of each row, or -1.
            Shape ``(n,)``.
        module: Index into ``modules`` of the innermost module of each row, or -1. Shape ``(n,)``.
        in_library: Whether it ran in a function of a library that the frame called, other than a
            tensor's method; False where that is not known. Shape ``(n,)``.
        origin: ``window``: stacks of this window; ``other-step``: stacks of another step; None: no
            stacks.
    """

    frames: tuple[Frame, ...]
    modules: tuple[str, ...]
    frame: Int32s
    module: Int32s
    in_library: Mask
    origin: Literal["window", "other-step"] | None

    def fits(self, events: EventTable) -> bool:
        """Return whether lines from a cache may belong to some events."""
        return (
            are_equally_long(events, self.frame, self.module, self.in_library)
            and is_within(self.frame, NO_FRAME, len(self.frames) - 1)
            and is_within(self.module, NO_FRAME, len(self.modules) - 1)
        )


class FrameTable(dict[Frame, int]):
    """Numbers of frames in order of appearance."""

    def __missing__(self, frame: Frame) -> int:
        number = self[frame] = len(self)
        return number


def _parse_user_frame(name: str, ownership: Ownership) -> Frame | None:
    """Return the frame of user code that a name stands for, with its full path."""
    frame = parse_frame(name)
    if frame is None or not ownership.is_user(frame.file):
        return None
    return replace(frame, file=ownership.path(frame.file))


def find_python_frames(
    events: EventTable, tree: CallTree, ownership: Ownership, table: FrameTable
) -> Int32s:
    """Find the innermost user frame of every row by the enclosing Python calls. Shape ``(n,)``.

    Returns numbers in ``table``, or -1. A frame that was open when recording began has no line.
    """
    python = events.category == Category.PYTHON
    is_open = find_open_frames(events)
    frame_of_row = np.full(len(events), NO_FRAME, dtype=np.int32)

    for began_before in (False, True):
        by_name = np.full(len(events.names), NO_FRAME, dtype=np.int32)
        rows = np.flatnonzero(python & (is_open == began_before))
        for name in distinct(events.name[rows]).tolist():
            frame = _parse_user_frame(events.names[name], ownership)
            if frame is not None:
                lost = began_before or frame.function == MODULE_LEVEL
                by_name[name] = table[replace(frame, line=None) if lost else frame]
        frame_of_row[rows] = by_name[events.name[rows]]
    return _inherit(frame_of_row, tree)


def find_open_frames(events: EventTable) -> Mask:
    """Find Python calls that were running when recording began. Shape ``(n,)``.

    The tracer writes all open frames of all threads before any call that is made later, with the
    line that each was executing, but may have left since. On the thread that started the profiler
    they end with the profiler's own; on other threads they are before the thread's next call.

    Source: ``torch/csrc/autograd/profiler_python.cpp`` (``PythonTracer::start``, which holds the
    interpreter's lock).
    """
    is_open = np.zeros(len(events), dtype=np.bool_)
    python = events.rows_of(*_CALLS)
    starting = np.flatnonzero(rows_named(events, _STARTING, *_CALLS))
    if not len(starting):
        return is_open

    row = int(starting[np.argmin(events.ts_ns[starting])])
    # The frames of the starting thread enclose the start of the profiler.
    lane, first_ns = events.lane[row], events.ts_ns[row]
    is_open[_find_calls_around(events, python, row)] = True

    later_calls = python[~is_open[python] & (events.lane[python] == lane)]
    if (events.ts_ns[later_calls] < first_ns).any():
        # Calls were recorded before: this is not the start of the recording.
        return np.zeros(len(events), dtype=np.bool_)

    next_ns = events.ts_ns[later_calls].min(initial=events.end_ns[python].max())
    is_open[python[(events.lane[python] != lane) & (events.ts_ns[python] < next_ns)]] = True
    return is_open


def starting_frames(events: EventTable) -> Mask:
    """Find the Python calls around each start of a recording, which last until it ends.

    Shape ``(n,)``.
    """
    is_around = np.zeros(len(events), dtype=np.bool_)
    starting = events.sort_by_start(np.flatnonzero(rows_named(events, _STARTING, *_CALLS)))
    python = events.rows_of(*_CALLS) if len(starting) else np.zeros(0, dtype=np.intp)

    # A program may start to record in each step: a call contains one of these if the first end
    # of all that begin after it is not later than its own.
    for lane in distinct(events.lane[starting]).tolist():
        starts = starting[events.lane[starting] == lane]
        first_ends = np.minimum.accumulate(_end_ns(events, starts)[::-1])[::-1]
        calls = python[events.lane[python] == lane]

        n_before = np.searchsorted(events.ts_ns[starts], events.ts_ns[calls])
        calls, n_before = calls[n_before < len(starts)], n_before[n_before < len(starts)]
        is_around[calls[first_ends[n_before] <= _end_ns(events, calls)]] = True
    return is_around


def _find_calls_around(events: EventTable, python: Rows, row: int) -> Rows:
    """Find the Python calls that contain a Python call, itself included.

    Times decide, since calls of profkit, which may have started the profiler, are in no call tree.
    """
    is_before = (events.lane[python] == events.lane[row]) & (
        events.ts_ns[python] <= events.ts_ns[row]
    )
    python = python[is_before]
    return np.asarray(python[_end_ns(events, python) >= events.ts_ns[row] + events.dur_ns[row]])


def _end_ns(events: EventTable, rows: Rows) -> Int64s:
    """Return when some rows end, without looking at all rows."""
    return np.asarray(events.ts_ns[rows] + events.dur_ns[rows])


def find_call_stack_frames(
    events: EventTable, tree: CallTree, ownership: Ownership, table: FrameTable
) -> Int32s:
    """Find the innermost user frames in ``Call stack``, which torch 1.8 to 1.10 wrote on operators.

    These lines are exact. Later versions derive ``Call stack`` from the trace's Python calls, with
    their lines.
    """
    column = events.call_stack
    frame_of_row = np.full(len(events), NO_FRAME, dtype=np.int32)
    if not len(column.rows) or events.has_python_calls:
        return frame_of_row

    by_stack = {
        stack: _find_innermost_user(events.names[stack], ownership, table)
        for stack in distinct(column.values).tolist()
    }
    frame_of_row[column.rows] = [by_stack[stack] for stack in column.values.tolist()]
    return _inherit(frame_of_row, tree)


def _find_innermost_user(stack: str, ownership: Ownership, table: FrameTable) -> int:
    for name in stack.split(";"):
        frame = _parse_user_frame(name.strip(), ownership)
        if frame is not None:
            return table[replace(frame, precision="line")]
    return NO_FRAME


def _find_library_calls(events: EventTable, tree: CallTree, ownership: Ownership) -> Mask:
    """Find rows whose innermost Python function is a library's, below a user's frame."""
    is_function = np.zeros(len(events.names), dtype=np.bool_)
    is_library = np.zeros(len(events.names), dtype=np.bool_)
    python = events.category == Category.PYTHON
    for name in distinct(events.name[python]).tolist():
        frame = parse_frame(events.names[name])
        if frame is not None and is_library_function(frame.file, frame.function):
            is_function[name] = True
            is_library[name] = not ownership.is_user(frame.file)

    row = tree.nearest(python & is_function[events.name] & ~starting_frames(events))
    return np.asarray((row != NO_ROW) & is_library[events.name[row]])


def find_modules(events: EventTable, tree: CallTree) -> tuple[tuple[str, ...], Int32s]:
    """Find the distinct modules, and the innermost module of each row or -1. Shape ``(n,)``."""
    names = [i for i, name in enumerate(events.names) if name.startswith(MODULE_PREFIX)]
    number = np.full(len(events.names), NO_FRAME, dtype=np.int32)
    number[names] = np.arange(len(names))
    module_of_row = np.where(events.category == Category.PYTHON, number[events.name], NO_FRAME)
    modules = tuple(events.names[i].removeprefix(MODULE_PREFIX) for i in names)
    return modules, _inherit(module_of_row.astype(np.int32), tree)


def find_forward_of_backward(events: EventTable, tree: CallTree) -> Int32s:
    """Find the forward operator of every row within a backward operator, else -1.

    A backward operator runs on autograd's thread without user frames, and has the sequence number
    of the forward operator that created it. Of several forward operators with that number, the
    last one counts, which is the innermost.

    Source: ``aten/src/ATen/record_function.h`` (``seqNr``), ``torch/csrc/autograd/engine.cpp``.

    Returns:
        Rows, or :data:`NO_ROW`. Shape ``(n,)``.
    """
    forward = np.full(len(events), NO_ROW, dtype=np.int32)
    rows = events.sequence.rows
    if not len(rows):
        return forward

    numbers = events.sequence.at(rows)
    backward = backward_rows(events)[rows]
    makers, wanted = rows[~backward], rows[backward]
    if not len(makers) or not len(wanted):
        return forward
    maker_numbers = numbers[~backward]

    order = np.lexsort((events.ts_ns[makers], maker_numbers))
    sorted_numbers = maker_numbers[order]
    place = np.searchsorted(sorted_numbers, numbers[backward], side="right") - 1
    match = (place >= 0) & (sorted_numbers[np.maximum(place, 0)] == numbers[backward])
    forward[wanted[match]] = makers[order][place[match]]

    row = tree.nearest(forward != NO_ROW)
    return np.where(row == NO_ROW, NO_ROW, forward[row]).astype(np.int32)


def backward_rows(events: EventTable) -> Mask:
    """Return which rows are operators of a backward pass with a sequence number. Shape ``(n,)``.

    ``Fwd thread id`` is also on forward operators if both run on one thread, so the name decides.
    """
    named = names_matching(events, BACKWARD)
    is_backward = np.zeros(len(events), dtype=np.bool_)
    rows = events.sequence.rows
    forward_thread = events.forward_thread.at(rows)
    is_backward[rows] = named[events.name[rows]] & (forward_thread != MISSING)
    return is_backward


def _inherit(value_of_row: Int32s, tree: CallTree) -> Int32s:
    """Return the value of each row, or else the value of the innermost enclosing row with one."""
    row = tree.nearest(value_of_row != NO_FRAME)
    return np.where(row == NO_ROW, NO_FRAME, value_of_row[row]).astype(np.int32)


def map_source(
    events: EventTable,
    tree: CallTree,
    steps: Steps,
    capture: CaptureInfo | None,
    forward: Int32s,
) -> SourceMap:
    """Determine where every host event comes from, also by lines that profkit recorded.

    Args:
        forward: Result of :func:`find_forward_of_backward`.
    """
    ownership = ownership_of(capture)
    table = FrameTable()
    frame = find_python_frames(events, tree, ownership, table)
    # Lines of ``Call stack`` are of the call, not of the function's definition.
    exact = find_call_stack_frames(events, tree, ownership, table)
    frame = np.where(exact != NO_FRAME, exact, frame)

    modules, module = find_modules(events, tree)
    in_library = _find_library_calls(events, tree, ownership)
    origin: Literal["window", "other-step"] | None = "window" if (frame != NO_FRAME).any() else None

    if capture is not None and capture.lines is not None:
        entry = align_lines(events, tree, steps, capture.lines)
        recorded_frame, modules, recorded_module = _build_recorded_lines(
            entry, tree, capture.lines, table, modules
        )
        in_library |= np.isin(entry, capture.lines.in_library)
        frame = np.where(recorded_frame != NO_FRAME, recorded_frame, frame)
        module = np.where(recorded_module != NO_FRAME, recorded_module, module)
        if (recorded_frame != NO_FRAME).any():
            origin = "window" if capture.lines.same_window else "other-step"

    # Backward operators run without user frames: they take the lines of their forward operators.
    backward = np.flatnonzero(forward != NO_ROW)
    made_by = forward[backward]
    frame[backward] = np.where(frame[made_by] != NO_FRAME, frame[made_by], frame[backward])
    module[backward] = np.where(module[made_by] != NO_FRAME, module[made_by], module[backward])

    return SourceMap(tuple(table), modules, frame, module, in_library, origin)


def _build_recorded_lines(
    entry: Int32s,
    tree: CallTree,
    lines: OpLines,
    table: FrameTable,
    modules: tuple[str, ...],
) -> tuple[Int32s, tuple[str, ...], Int32s]:
    """Build the frames and modules of the lines that profkit recorded."""
    numbers = np.array([table[frame] for frame in _build_frames(lines)], dtype=np.int32)
    frame = _number_by_entry(entry, lines.frame, numbers)

    recorded_modules = tuple(name.removeprefix(MODULE_PREFIX) for name in lines.modules)
    shifted = np.arange(len(recorded_modules), dtype=np.int32) + len(modules)
    module = _number_by_entry(entry, lines.module, shifted)
    return _inherit(frame, tree), modules + recorded_modules, _inherit(module, tree)


def _build_frames(lines: OpLines) -> list[Frame]:
    """Build the frames that profkit recorded, comprehensions as lines of the function around them.

    Until Python 3.12 a comprehension is a function of its own (PEP 709), and a generator still is.
    To a reader it is a part of the line that it is on: one line would be listed twice.
    """
    around = {
        (file, line): function
        for file, line, function, exact in lines.frames
        if exact and function not in COMPREHENSIONS
    }
    return [
        Frame(file, line, around.get((file, line), function), "line")
        if exact and function in COMPREHENSIONS
        else Frame(file, line, function, "line" if exact else "function")
        for file, line, function, exact in lines.frames
    ]


def find_definitions(
    frames: Sequence[Frame], capture: CaptureInfo | None
) -> list[tuple[str, str, int]]:
    """Return file, name and first line of the function of each frame; line 0 if it is not known."""
    lines = None if capture is None else capture.lines
    first_lines: dict[tuple[str, int, str], int] = {}
    if lines is not None and lines.first_lines:
        places = [(file, line, function) for file, line, function, _ in lines.frames]
        first_lines = dict(zip(places, lines.first_lines, strict=True))
    return [
        (
            frame.file,
            frame.function,
            first_lines.get((frame.file, frame.line or 0, frame.function), 0),
        )
        for frame in frames
    ]


def _number_by_entry(entry: Int32s, index: list[int], numbers: Int32s) -> Int32s:
    """Return the number at the index of each row's entry, or -1. Shape of ``entry``."""
    if not len(numbers):
        return np.full(len(entry), NO_FRAME, dtype=np.int32)
    by_entry = np.array([*index, NO_FRAME], dtype=np.int64)
    chosen = by_entry[entry]
    return np.where(chosen < 0, NO_FRAME, numbers[np.maximum(chosen, 0)]).astype(np.int32)
