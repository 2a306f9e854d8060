"""The critical path of each step, its short segments joined."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.engine.figures.path_segments import PathSegments
from profkit.engine.figures.path_step_times import (
    build_step_parts,
    find_step_lines,
    sum_step_kinds,
)
from profkit.index.distinct import numbered, numbered_pairs
from profkit.index.host.source import NO_FRAME
from profkit.index.intervals import covered_within
from profkit.index.replay.path import CriticalPath
from profkit.model.critical_path import PathKind, PathSegment, PathStep
from profkit.model.events import NO_ROW, Int32s, Int64s, Rows
from profkit.model.location import Location

MAX_SEGMENTS: Final = 300
"""Segments of all steps together: a path may have a hundred thousand, and people read reports."""


def build_path_steps(
    ctx: Context, path: CriticalPath, segments: PathSegments
) -> Iterator[PathStep]:
    """Yield the critical path of each step, or of the whole recording without steps."""
    keys = _keys(ctx, segments)
    first = _starts(path.step, keys, path.lengths_ns)

    # Where each step begins in the path, and where in the report's segments.
    begins = np.flatnonzero(np.append(True, path.step[1:] != path.step[:-1]))
    ends = np.append(begins[1:], len(path.step))
    place = np.searchsorted(first, np.append(begins, len(path.step)))

    starts_ns, ends_ns = path.starts_ns[begins], path.ends_ns[ends - 1]
    unexplained_ns = covered_within(path.unexplained, starts_ns, ends_ns)
    mains = _mains(first, keys, path.lengths_ns).tolist()
    lengths_ns = np.add.reduceat(path.lengths_ns, first).tolist()
    ns_by_kind = sum_step_kinds(path, begins)
    steps_ns = ns_by_kind.sum(axis=1)
    lines = find_step_lines(ctx, path, segments, steps_ns)

    for i, number in enumerate(path.step[begins].tolist()):
        places = range(place[i], place[i + 1])
        yield PathStep(
            ctx.steps.names[number] if len(ctx.steps) else "",
            int(steps_ns[i]),
            int(unexplained_ns[i]),
            tuple(_segment(ctx, segments, mains[i], lengths_ns[i]) for i in places),
            tuple(build_step_parts(ns_by_kind[i])),
            tuple(lines[i]),
        )


def _segment(ctx: Context, segments: PathSegments, main: int, length_ns: int) -> PathSegment:
    """Build one segment of the report, named after one of the segments that it joins."""
    group, cause = int(segments.group[main]), int(segments.cause[main])
    frame = int(segments.frame[group])
    return PathSegment(
        PathKind(int(segments.kind[group])).report_name,
        length_ns,
        Location() if frame == NO_FRAME else ctx.source.frames[frame].location,
        None if cause == NO_ROW else ctx.location(cause).op,
    )


def _mains(first: Rows, keys: Int32s, lengths_ns: Int64s) -> Rows:
    """Return the first segment with the key that takes longest, for each segment of the report.

    Args:
        first: Where the report's segments start. Shape ``(r,)``, also of the result.
        keys: Shape ``(p,)``.
    """
    sizes = np.diff(np.append(first, len(keys)))
    of = np.repeat(np.arange(len(first), dtype=np.int32), sizes)

    # Pairs ascend by segment of the report, then by key.
    (owner, _), pair = numbered_pairs(of, keys)
    total_ns = np.bincount(pair, lengths_ns)
    most_ns = np.maximum.reduceat(total_ns, np.flatnonzero(np.diff(owner, prepend=-1)))

    main_pair = _first_of_each(owner, np.flatnonzero(total_ns == most_ns[owner]))
    return _first_of_each(of, np.flatnonzero(pair == main_pair.astype(np.int32)[of]))


def _first_of_each(owner: Int32s | Int64s, places: Rows) -> Rows:
    """Return the first of some ascending places for each owner, whose places are in a row."""
    return np.asarray(places[np.diff(owner[places], prepend=-1) != 0])


def _keys(ctx: Context, segments: PathSegments) -> Int32s:
    """Return a number for each kind, source line and operator. Shape ``(p,)``."""
    op_of = np.append(ctx.innermost_op, np.int32(NO_ROW))
    name_of = np.append(ctx.events.name, np.int32(-1))
    name = name_of[op_of[segments.cause]]
    name += 1
    _, kind_and_line = numbered((segments.frame + 1) * len(PathKind) + segments.kind)
    return numbered_pairs(kind_and_line.astype(np.int32)[segments.group], name)[1]


def _starts(step: Int32s, key: Int32s, lengths_ns: Int64s) -> Rows:
    """Return where the report's segments start: the longest ones, and the gaps between them.

    Args:
        key: Equal for adjacent segments that are one in any case. Shape ``(p,)``.
    """
    is_new_step = np.append(True, step[1:] != step[:-1])
    starts = np.flatnonzero(is_new_step | np.append(True, key[1:] != key[:-1]))
    if len(starts) <= MAX_SEGMENTS:
        return starts

    n_long = max(0, MAX_SEGMENTS - int(is_new_step.sum())) // 2
    is_long = np.zeros(len(starts) + 1, dtype=np.bool_)
    is_long[_longest(np.add.reduceat(lengths_ns, starts), n_long)] = True

    # The last entry belongs to the place before the first segment.
    is_kept = is_long[:-1] | np.roll(is_long, 1)[:-1] | is_new_step[starts]
    return np.asarray(starts[is_kept])


def _longest(lengths_ns: Int64s, n: int) -> Rows:
    """Return the ``n`` longest, fewer than there are; of equally long ones the first."""
    if not n:
        return np.zeros(0, dtype=np.intp)
    least_ns = np.partition(lengths_ns, -n)[-n]
    longer = np.flatnonzero(lengths_ns > least_ns)
    return np.append(longer, np.flatnonzero(lengths_ns == least_ns)[: n - len(longer)])
