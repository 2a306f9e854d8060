"""The segments of the critical path with their names and source lines."""

from functools import cached_property
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.index.distinct import numbered_pairs
from profkit.index.host.frames import parse_frame
from profkit.index.host.source import NO_FRAME
from profkit.index.replay.path import CriticalPath
from profkit.index.sums import sum_by_key
from profkit.model.critical_path import PathKind
from profkit.model.events import NO_ROW, Int32s, Int64s, Mask

_NO_NAME: Final = -1


@dataclass(frozen=True)
class PathSegments:
    """The segments of the critical path, in time order, in groups of one kind, name and line.

    Attributes:
        kind: A :class:`PathKind` value of each group. Shape ``(g,)``.
        name: Number of each group's name, or -1 for none. Shape ``(g,)``; groups ascend by name,
            kind and frame.
        frame: The source line of each group, an index into the source map's frames. Shape ``(g,)``.
        group: The group of each segment. Shape ``(p,)``.
        length_ns: Shape ``(p,)``.
        cause: The host event that has the source line of the segment: the event itself, the launch
            of device work, or :data:`NO_ROW`. Shape ``(p,)``.
    """

    kind: Int64s
    name: Int64s
    frame: Int64s
    group: Int32s
    length_ns: Int64s
    cause: Int32s

    @cached_property
    def n_by_group(self) -> Int64s:
        """Number of segments of each group. Shape ``(g,)``."""
        return np.bincount(self.group, minlength=len(self.kind)).astype(np.int64)

    @cached_property
    def n_events_by_group(self) -> Int64s:
        """Number of host events that each group's segments are of. Shape ``(g,)``."""
        counted = self.group[self.counts_event]
        return np.bincount(counted, minlength=len(self.kind)).astype(np.int64)

    @cached_property
    def counts_event(self) -> Mask:
        """Which segments stand for a host event, one for each event and kind. Shape ``(p,)``.

        An operator that calls others has a segment before, between and after them.
        """
        kind_of_segment = np.where(self.cause == NO_ROW, -1, self.kind[self.group])
        chosen = np.zeros(self.cause.max(initial=NO_ROW) + 1, dtype=np.int64)
        counted = np.zeros(len(self.cause), dtype=np.bool_)

        # A table by kind and event would take the memory of a dozen columns of the recording.
        for kind in PathKind:
            # Of an event's segments of one kind the one that is written last stands for it.
            segments = np.flatnonzero(kind_of_segment == kind)
            chosen[self.cause[segments]] = segments
            counted[segments] = chosen[self.cause[segments]] == segments
        return counted

    @cached_property
    def ns_by_group(self) -> Int64s:
        """Time of each group. Shape ``(g,)``."""
        return sum_by_key(len(self.kind), self.group, self.length_ns)


def group_path_segments(ctx: Context, path: CriticalPath) -> PathSegments:
    """Group the segments of a path by kind, name and source line."""
    events, launches = ctx.events, ctx.launches
    row = path.row
    is_waiting = path.kind == PathKind.UNRECORDED
    if is_waiting.any():
        row = np.where(is_waiting, _waiting_calls(ctx, path), row)

    # NO_ROW is -1: it reads the last entry of a table of rows.
    cause_of = np.append(np.arange(len(events), dtype=np.int32), np.int32(NO_ROW))
    cause_of[launches.work] = launches.call_or_op
    name_of = np.append(events.name, np.int32(_NO_NAME))
    name_of[ctx.steps.annotations] = _NO_NAME
    frame_of = np.append(ctx.source.frame, np.int32(NO_FRAME))

    # Kind and name become one number, which with the line numbers the group.
    cause, name = cause_of[row], name_of[row]
    name += 1
    name *= len(PathKind)
    name += path.kind
    (what, frame), group = numbered_pairs(name, frame_of[cause] + 1)
    numbers, kinds = np.divmod(what, len(PathKind))
    return PathSegments(kinds, numbers - 1, frame - 1, group, path.lengths_ns, cause)


def name_of_segment(ctx: Context, kind: int, name: int) -> str:
    """Return the name of a segment, as in :class:`~profkit.model.critical_path.PathEntry`.

    Args:
        kind: A :class:`PathKind` value.
        name: As in :class:`PathSegments`.
    """
    if name == _NO_NAME:
        return ""
    text = ctx.events.names[name]
    on_host = kind in {PathKind.PYTHON, PathKind.DATA_WAIT}
    frame = parse_frame(text) if on_host else None
    return frame.location.place if frame is not None else text


def _waiting_calls(ctx: Context, path: CriticalPath) -> Int32s:
    """Return the blocking call that the host is in during each segment, or :data:`NO_ROW`."""
    events, rows = ctx.events, ctx.syncs.rows
    if not len(rows):
        return np.full(len(path.row), NO_ROW, dtype=np.int32)
    rows = events.sort_by_start(rows)

    middle = (path.starts_ns + path.ends_ns) // 2
    call = rows[np.maximum(np.searchsorted(events.ts_ns[rows], middle, side="right") - 1, 0)]
    is_within = (events.ts_ns[call] <= middle) & (events.end_ns[call] > middle)
    return np.where(is_within, call, NO_ROW).astype(np.int32)
