"""What the critical path of the steps consists of, by kind, name and source line."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.figures.path_segments import PathSegments, name_of_segment, path_segments
from profkit.engine.figures.path_steps import path_steps
from profkit.index.distinct import numbered
from profkit.index.intervals import covered_within, union
from profkit.index.replay.critical_path import CriticalPath
from profkit.index.replay.replay import MAX_UNEXPLAINED_SHARE
from profkit.model.critical_path import (
    BlockingCall,
    CriticalPathSummary,
    PathEntry,
    PathKind,
    PathKindName,
    PathLine,
    PathPart,
)
from profkit.model.events import NO_ROW, Int64s
from profkit.model.location import Location

MAX_LINES: Final = 20
MAX_ENTRIES: Final = 50
MAX_BLOCKING: Final = 20


def critical_path_summary(ctx: Context) -> CriticalPathSummary | None:
    """The critical path of all steps, or None if nothing of the program takes time."""
    if not ctx.has_program:
        return None
    path = ctx.critical_path
    total_ns = int(path.lengths_ns.sum())
    if not total_ns:
        return None
    n_steps = len(ctx.steps)
    times = _Times(n_steps, total_ns)
    segments = path_segments(ctx, path)
    unexplained = path.unexplained_ns / total_ns
    return CriticalPathSummary(
        n_steps=n_steps,
        total_ns=total_ns,
        per_step_ns=times.per_step(total_ns),
        parts=tuple(_parts(path, times)),
        lines=tuple(_lines(ctx, segments, times)),
        entries=tuple(_entries(ctx, segments, times)),
        blocking=tuple(_blocking(ctx, path, times)),
        unexplained_ns=path.unexplained_ns,
        unexplained_share=unexplained,
        is_explained=unexplained <= MAX_UNEXPLAINED_SHARE,
        cold_start_ns=_cold_start_ns(ctx, path),
        steps=tuple(path_steps(ctx, path, segments)),
    )


def _cold_start_ns(ctx: Context, path: CriticalPath) -> int:
    """Path time in calls that first load code or a library, or create a context."""
    is_cold = (path.kind == PathKind.RUNTIME) & np.isin(path.row, ctx.cold_calls)
    return int(path.lengths_ns[is_cold].sum())


@dataclass(frozen=True)
class _Times:
    """Times as shares of the path and per step."""

    n_steps: int
    total_ns: int

    def per_step(self, ns: int) -> int | None:
        return round(ns / self.n_steps) if self.n_steps else None

    def figures(self, ns: int) -> tuple[int, int | None, float]:
        """A time, the same per step, and as a share of the path."""
        return ns, self.per_step(ns), ns / self.total_ns


@dataclass(frozen=True)
class _Group:
    """Segments with the same key, of which ``longest`` is the index of the longest one."""

    key: int
    ns: int
    n: int
    longest: int


def _groups(keys: Int64s, lengths_ns: Int64s, limit: int | None = None) -> list[_Group]:
    """Group segments by key, most time first: all groups, or the first few."""
    found, group = numbered(keys)
    total = np.zeros(len(found), dtype=np.int64)
    np.add.at(total, group, lengths_ns)
    n = np.bincount(group, minlength=len(found))
    most_ns, longest = np.zeros((2, len(found)), dtype=np.int64)
    np.maximum.at(most_ns, group, lengths_ns)
    is_longest = np.flatnonzero(lengths_ns == most_ns[group])
    longest[group[is_longest]] = is_longest  # of several the last one
    rank = np.argsort(-total, kind="stable")[:limit].tolist()
    return [_Group(int(found[i]), int(total[i]), int(n[i]), int(longest[i])) for i in rank]


def _parts(path: CriticalPath, times: _Times) -> Iterator[PathPart]:
    per_step = per_step_by_kind(path, times.n_steps)
    for group in _groups(path.kind.astype(np.int64), path.lengths_ns):
        kind = PathKind(group.key).report_name
        yield PathPart(
            kind, group.ns, per_step[kind] if times.n_steps else None, group.ns / times.total_ns
        )


def per_step_by_kind(path: CriticalPath, n_steps: int) -> dict[PathKindName, int]:
    """Nanoseconds per step of each kind, or of the recording without steps.

    They are rounded so that they add up to those of the path.
    """
    total_ns = np.bincount(path.kind, path.lengths_ns, len(PathKind))
    ends = np.round(np.cumsum(total_ns) / max(1, n_steps)).astype(np.int64)
    each = np.diff(ends, prepend=0).tolist()
    return {kind.report_name: each[kind] for kind in PathKind if total_ns[kind]}


def _lines(ctx: Context, segments: PathSegments, times: _Times) -> Iterator[PathLine]:
    keys = segments.frame.astype(np.int64) + 1
    keys = keys * len(PathKind) + segments.kind
    for group in _groups(keys, segments.length_ns, MAX_LINES):
        frame, kind = divmod(group.key, len(PathKind))
        own = np.flatnonzero(keys == group.key)
        main = _groups(segments.name[own].astype(np.int64) + 1, segments.length_ns[own], 1)[0]
        yield PathLine(
            PathKind(kind).report_name,
            ctx.source.frames[frame - 1].location if frame else Location(),
            *times.figures(group.ns),
            group.n,
            name_of_segment(ctx, kind, main.key - 1),
            main.ns / times.total_ns,
        )


def _entries(ctx: Context, segments: PathSegments, times: _Times) -> Iterator[PathEntry]:
    what, what_of = numbered((segments.name.astype(np.int64) + 1) * len(PathKind) + segments.kind)
    where, where_of = numbered(segments.frame.astype(np.int64) + 1)
    keys = what_of * len(where) + where_of
    for group in _groups(keys, segments.length_ns, MAX_ENTRIES):
        name, kind = divmod(int(what[group.key // len(where)]), len(PathKind))
        yield PathEntry(
            PathKind(kind).report_name,
            name_of_segment(ctx, kind, name - 1),
            ctx.location(int(segments.cause[group.longest])),
            *times.figures(group.ns),
            group.n,
        )


def _blocking(ctx: Context, path: CriticalPath, times: _Times) -> Iterator[BlockingCall]:
    """The calls that block the host while the path is on a device."""
    events, frames = ctx.events, ctx.source.frames
    on_device = path.lane == NO_ROW
    work = union(path.starts_ns[on_device], path.ends_ns[on_device])
    rows = ctx.syncs.rows
    blocked_ns = covered_within(work, events.ts_ns[rows], events.end_ns[rows])
    rows, blocked_ns = rows[blocked_ns > 0], blocked_ns[blocked_ns > 0]
    keys = events.name[rows].astype(np.int64) * (len(frames) + 1) + ctx.source.frame[rows] + 1
    for group in _groups(keys, blocked_ns, MAX_BLOCKING) if len(rows) else ():
        row = int(rows[group.longest])
        yield BlockingCall(
            events.name_of(row), ctx.location(row), *times.figures(group.ns), group.n
        )
