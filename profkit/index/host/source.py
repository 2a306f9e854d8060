"""The source line, operator and ``nn.Module`` of each event.

The source line is the innermost frame that is not torch, an installed package, the standard library
or generated code. It comes from the stacks of the window, from lines that profkit recorded with it,
or from those of another step of the same loop.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from profkit.index.host.frames import Ownership, parse_frame
from profkit.index.host.nesting import CallTree
from profkit.index.host.step_alignment import align_lines
from profkit.index.host.steps import Steps
from profkit.index.runtime_calls import names_matching
from profkit.model.capture_info import CaptureInfo, OpLines
from profkit.model.events import MISSING, NO_ROW, Category, EventTable, Int32s, Mask
from profkit.model.location import Frame
from profkit.model.torch_names import BACKWARD, MODULE_PREFIX

NO_FRAME = -1


@dataclass(frozen=True)
class SourceMap:
    """Where every host event comes from.

    Attributes:
        frames: Each frame once.
        modules: Each ``nn.Module`` once, with torch's name.
        frame: Index into ``frames`` of the innermost user frame of each row, or -1.
            Shape ``(n,)``.
        module: Index into ``modules`` of the innermost module of each row, or -1. Shape ``(n,)``.
        origin: ``window``: stacks of this window; ``other-step``: stacks of another step; None: no
            stacks.
    """

    frames: tuple[Frame, ...]
    modules: tuple[str, ...]
    frame: Int32s
    module: Int32s
    origin: Literal["window", "other-step"] | None


@dataclass
class FrameTable:
    """Interned frames."""

    numbers: dict[Frame, int] = field(default_factory=dict)

    def number(self, frame: Frame) -> int:
        """The number of a frame."""
        return self.numbers.setdefault(frame, len(self.numbers))


def python_frames(
    events: EventTable, tree: CallTree, ownership: Ownership, table: FrameTable
) -> Int32s:
    """The innermost user frame of every row, from the enclosing Python calls.

    Returns:
        Numbers in ``table``, or -1. Shape ``(n,)``.
    """
    by_name = np.full(len(events.names), NO_FRAME, dtype=np.int32)
    python = events.category == Category.PYTHON
    for name in np.unique(events.name[python]).tolist():
        frame = parse_frame(events.names[name])
        if frame is not None and ownership.is_user(frame.file):
            path = ownership.path(frame.file)
            known = Frame(path, frame.line, frame.function, frame.precision)
            by_name[name] = table.number(known)
    own = np.where(python, by_name[events.name], NO_FRAME)
    return _inherited(own.astype(np.int32), tree)


def call_stack_frames(
    events: EventTable, tree: CallTree, ownership: Ownership, table: FrameTable
) -> Int32s:
    """The innermost user frame, from the ``Call stack`` that torch 1.8 to 1.10 wrote on operators.

    There the lines are exact.
    """
    column = events.call_stack
    own = np.full(len(events), NO_FRAME, dtype=np.int32)
    if not len(column.rows):
        return own
    by_stack = {
        stack: _innermost_user(events.names[stack], ownership, table)
        for stack in np.unique(column.values).tolist()
    }
    own[column.rows] = [by_stack[stack] for stack in column.values.tolist()]
    return _inherited(own, tree)


def _innermost_user(stack: str, ownership: Ownership, table: FrameTable) -> int:
    for name in stack.split(";"):
        frame = parse_frame(name.strip())
        if frame is not None and ownership.is_user(frame.file):
            path = ownership.path(frame.file)
            return table.number(Frame(path, frame.line, frame.function))
    return NO_FRAME


def modules_of(events: EventTable, tree: CallTree) -> tuple[tuple[str, ...], Int32s]:
    """Each module once, and the innermost one of each row or -1. Shape ``(n,)``."""
    names = [i for i, name in enumerate(events.names) if name.startswith(MODULE_PREFIX)]
    number = np.full(len(events.names), NO_FRAME, dtype=np.int32)
    number[names] = np.arange(len(names))
    own = np.where(events.category == Category.PYTHON, number[events.name], NO_FRAME)
    modules = tuple(events.names[i].removeprefix(MODULE_PREFIX) for i in names)
    return modules, _inherited(own.astype(np.int32), tree)


def forward_of_backward(events: EventTable, tree: CallTree) -> Int32s:
    """For every row within a backward operator the row of its forward operator, else -1.

    A backward operator runs on autograd's thread without user frames, and has the sequence number
    of the forward operator that created it. Of several forward operators with that number it is the
    last one, which is the innermost.

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
    """Which rows are operators of a backward pass with a sequence number. Shape ``(n,)``.

    ``Fwd thread id`` is on forward operators too where both run on one thread, so the name decides.
    """
    named = names_matching(events.names, BACKWARD)
    found = np.zeros(len(events), dtype=np.bool_)
    rows = events.sequence.rows
    forward_thread = events.forward_thread.at(rows)
    found[rows] = named[events.name[rows]] & (forward_thread != MISSING)
    return found


def _inherited(own: Int32s, tree: CallTree) -> Int32s:
    """The value of each row, or else that of the innermost enclosing row with one."""
    row = tree.nearest(own != NO_FRAME)
    return np.where(row == NO_ROW, NO_FRAME, own[row]).astype(np.int32)


def map_source(
    events: EventTable, tree: CallTree, steps: Steps, capture: CaptureInfo | None
) -> SourceMap:
    """Determine where every host event comes from.

    Args:
        capture: Data that profkit recorded beside the events, or None.
    """
    ownership = Ownership(
        paths=capture.paths if capture else {},
        libraries=frozenset(capture.libraries if capture else ()),
        known=capture is not None and bool(capture.paths),
    )
    table = FrameTable()
    frame = python_frames(events, tree, ownership, table)
    exact = call_stack_frames(events, tree, ownership, table)
    frame = np.where(exact != NO_FRAME, exact, frame)
    modules, module = modules_of(events, tree)
    origin: Literal["window", "other-step"] | None = "window" if (frame != NO_FRAME).any() else None
    if capture is not None and capture.lines is not None:
        recorded_frame, modules, recorded_module = _recorded_lines(
            events, tree, steps, capture.lines, table, modules
        )
        frame = np.where(recorded_frame != NO_FRAME, recorded_frame, frame)
        module = np.where(recorded_module != NO_FRAME, recorded_module, module)
        if (recorded_frame != NO_FRAME).any():
            origin = "window" if capture.lines.same_window else "other-step"
    forward = forward_of_backward(events, tree)
    has = np.flatnonzero(forward != NO_ROW)
    maker = forward[has]
    frame[has] = np.where(frame[maker] != NO_FRAME, frame[maker], frame[has])
    module[has] = np.where(module[maker] != NO_FRAME, module[maker], module[has])
    return SourceMap(tuple(table.numbers), modules, frame, module, origin)


def _recorded_lines(
    events: EventTable,
    tree: CallTree,
    steps: Steps,
    lines: OpLines,
    table: FrameTable,
    modules: tuple[str, ...],
) -> tuple[Int32s, tuple[str, ...], Int32s]:
    """Frames and modules that profkit recorded beside the events."""
    entry = align_lines(events, tree, steps, lines).entry
    numbers = np.array(
        [
            table.number(Frame(file, line, function, "line" if exact else "function"))
            for file, line, function, exact in lines.frames
        ],
        dtype=np.int32,
    )
    frame = _by_entry(entry, lines.frame, numbers)
    recorded_modules = tuple(name.removeprefix(MODULE_PREFIX) for name in lines.modules)
    shifted = np.arange(len(recorded_modules), dtype=np.int32) + len(modules)
    module = _by_entry(entry, lines.module, shifted)
    return _inherited(frame, tree), modules + recorded_modules, _inherited(module, tree)


def _by_entry(entry: Int32s, index: list[int], numbers: Int32s) -> Int32s:
    """For each row the number at its entry's index, or -1. Shape of ``entry``."""
    if not len(numbers):
        return np.full(len(entry), NO_FRAME, dtype=np.int32)
    by_entry = np.array([*index, NO_FRAME], dtype=np.int64)
    chosen = by_entry[entry]
    return np.where(chosen < 0, NO_FRAME, numbers[np.maximum(chosen, 0)]).astype(np.int32)
