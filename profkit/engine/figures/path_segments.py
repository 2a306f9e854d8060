"""The segments of the critical path with their names and source lines."""

from typing import Final

import numpy as np
import numpy.typing as npt

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.index.host.frames import parse_frame
from profkit.index.host.source import NO_FRAME, starting_frames
from profkit.index.replay.critical_path import CriticalPath
from profkit.index.runtime_calls import rows_named
from profkit.model.critical_path import PathKind
from profkit.model.events import NO_ROW, Category, Int32s, Int64s, Mask
from profkit.patterns import regex

_NO_NAME: Final = -1
_PROFKIT: Final = regex(
    r"(^|[/\\])profkit[/\\]capture[/\\]"
    r"(memory[/\\](monitor|holders)[/\\]|(session|cpu_time)\.py|"
    r"(step_detection|compiling|module_calls)\.py\(\d+\): (unless_|_on_))"
)
"""Calls of profkit in a recorded program below which nothing of the program runs."""
PROFKIT_NAME: Final = "recording and monitoring by profkit"


@dataclass(frozen=True)
class PathSegments:
    """The segments of the critical path, in time order.

    Attributes:
        kind: A :class:`PathKind` value. Shape ``(p,)``.
        length_ns: Shape ``(p,)``.
        name: Number of the name, -1 for none, or the number of names for :data:`PROFKIT_NAME`.
            Shape ``(p,)``.
        cause: The host event that has the source line of the segment: the event itself, the launch
            of device work, or :data:`NO_ROW`. Shape ``(p,)``.
        frame: The source line, an index into the source map's frames. Shape ``(p,)``.
    """

    kind: npt.NDArray[np.uint8]
    length_ns: Int64s
    name: Int32s
    cause: Int32s
    frame: Int32s


def path_segments(ctx: Context, path: CriticalPath) -> PathSegments:
    """The segments of a path with their names and source lines."""
    events, launches = ctx.events, ctx.launches
    row = path.row.copy()
    waiting = path.kind == PathKind.UNRECORDED
    row[waiting] = _waiting_calls(ctx, path)[waiting]
    by_row = np.arange(len(events), dtype=np.int32)
    by_row[launches.work] = np.where(launches.launch == NO_ROW, launches.op, launches.launch)
    has_row = row != NO_ROW
    cause = np.where(has_row, by_row[row], NO_ROW).astype(np.int32)
    is_named = has_row & ~np.isin(row, ctx.steps.annotations)
    name = np.where(is_named, events.name[row], _NO_NAME).astype(np.int32)
    by_profkit = has_row & (path.kind == PathKind.PYTHON) & _in_profkit(ctx)[row]
    name[by_profkit], cause[by_profkit] = len(events.names), NO_ROW
    return PathSegments(
        path.kind,
        path.lengths_ns,
        name,
        cause,
        np.where(cause == NO_ROW, NO_FRAME, ctx.source.frame[cause]).astype(np.int32),
    )


def _in_profkit(ctx: Context) -> Mask:
    """Which rows are profkit's own Python calls, or below one. Shape ``(n,)``.

    A call that began to record is none of them if its end was not recorded: it has that of its
    caller then, and the program runs below it. What begins after the end of a call is not below it
    either, but may be below a region that the call opened.
    """
    events, parent = ctx.events, ctx.tree.parent
    own = rows_named(events, _PROFKIT, Category.PYTHON)
    is_open = starting_frames(events, ctx.tree)
    has_caller = parent != NO_ROW
    is_open[has_caller] &= events.end_ns[has_caller] >= events.end_ns[parent[has_caller]]
    nearest = ctx.tree.nearest(own & ~is_open)
    return np.asarray((nearest != NO_ROW) & (events.ts_ns < events.end_ns[nearest]))


def name_of_segment(ctx: Context, kind: int, name: int) -> str:
    """The name of a segment, as in :class:`~profkit.model.critical_path.PathEntry`.

    Args:
        kind: A :class:`PathKind` value.
        name: As in :class:`PathSegments`.
    """
    if name == _NO_NAME:
        return ""
    if name == len(ctx.events.names):
        return PROFKIT_NAME
    text = ctx.events.names[name]
    on_host = kind in {PathKind.PYTHON, PathKind.DATA_WAIT}
    frame = parse_frame(text) if on_host else None
    return frame.location.place if frame is not None else text


def _waiting_calls(ctx: Context, path: CriticalPath) -> Int32s:
    """The blocking call that the host is in during each segment, or :data:`NO_ROW`."""
    events, rows = ctx.events, ctx.syncs.rows
    if not len(rows):
        return np.full(len(path.row), NO_ROW, dtype=np.int32)
    rows = rows[np.argsort(events.ts_ns[rows], kind="stable")]
    middle = (path.starts_ns + path.ends_ns) // 2
    call = rows[np.maximum(np.searchsorted(events.ts_ns[rows], middle, side="right") - 1, 0)]
    is_within = (events.ts_ns[call] <= middle) & (events.end_ns[call] > middle)
    return np.where(is_within, call, NO_ROW).astype(np.int32)
