"""The critical path of the steps by kind, name and source line."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.families.sampled_python import SampledPlace
from profkit.engine.figures.path_segments import PathSegments, group_path_segments, name_of_segment
from profkit.engine.figures.path_steps import build_path_steps
from profkit.engine.figures.sampled_path import SampledPath, build_sampled_path
from profkit.index.distinct import distinct, numbered
from profkit.index.host.source import NO_FRAME, find_definitions
from profkit.index.host.steps import divide_by_steps
from profkit.index.intervals import covered_within, union
from profkit.index.replay.path import CriticalPath
from profkit.index.replay.replay import MAX_UNEXPLAINED_SHARE
from profkit.index.runtime_calls import are_optimizer_steps
from profkit.index.sums import sum_by_key
from profkit.model.critical_path import (
    BlockingCall,
    CriticalPathSummary,
    PathEntry,
    PathFunction,
    PathKind,
    PathKindName,
    PathLine,
    PathPart,
)
from profkit.model.events import NO_ROW, Int64s
from profkit.model.location import MODULE_LEVEL, Location

_PathItem = TypeVar("_PathItem", PathLine, PathEntry)

MAX_LINES: Final = 20
MAX_ENTRIES: Final = 50
MAX_BLOCKING: Final = 20
MAX_FUNCTIONS: Final = 10


def summarize_critical_path(ctx: Context) -> CriticalPathSummary | None:
    """Summarize the critical path of all steps, or return None if the program takes no time."""
    if not ctx.has_program:
        return None
    path = ctx.critical_path
    total_ns = int(path.lengths_ns.sum())
    if not total_ns:
        return None

    n_steps = len(ctx.steps)
    times = _Times(n_steps, total_ns)
    segments = group_path_segments(ctx, path)
    unexplained = path.unexplained_ns / total_ns
    sampled = build_sampled_path(ctx, path, segments)

    return CriticalPathSummary(
        n_steps=n_steps,
        total_ns=total_ns,
        per_step_ns=divide_by_steps(total_ns, n_steps),
        parts=tuple(_summarize_parts(path, segments, times)),
        lines=_longest(
            (
                *_summarize_lines(ctx, segments, sampled.ns_by_group, times),
                *_sampled_lines(sampled, times),
            ),
            MAX_LINES,
        ),
        entries=_longest(
            (
                *_summarize_entries(ctx, segments, sampled.ns_by_group, times),
                *_sampled_entries(sampled, times),
            ),
            MAX_ENTRIES,
        ),
        blocking=tuple(_summarize_blocking_calls(ctx, path, times)),
        unexplained_ns=path.unexplained_ns,
        unexplained_share=unexplained,
        is_explained=unexplained <= MAX_UNEXPLAINED_SHARE,
        cold_start_ns=_cold_start_ns(ctx, path),
        steps=tuple(build_path_steps(ctx, path, segments)),
        functions=tuple(_summarize_functions(ctx, segments, times)),
    )


def _cold_start_ns(ctx: Context, path: CriticalPath) -> int:
    """Sum the path time in calls that first load code or a library, or create a context."""
    is_cold = (path.kind == PathKind.RUNTIME) & np.isin(path.row, ctx.cold_calls)
    return int(path.lengths_ns[is_cold].sum())


@dataclass(frozen=True)
class _Times:
    """Times as shares of the path and per step."""

    n_steps: int
    total_ns: int

    def figures(self, ns: int) -> tuple[int, int | None, float]:
        """Return a time, the time per step, and its share of the path."""
        return ns, divide_by_steps(ns, self.n_steps), ns / self.total_ns


def _summarize_parts(
    path: CriticalPath, segments: PathSegments, times: _Times
) -> Iterator[PathPart]:
    per_step = per_step_by_kind(path, times.n_steps)
    kinds, of = numbered(segments.kind)
    ns = sum_by_key(len(kinds), of, segments.ns_by_group)
    for i in _most(ns):
        kind = PathKind(int(kinds[i])).report_name
        yield PathPart(
            kind, int(ns[i]), per_step[kind] if times.n_steps else None, int(ns[i]) / times.total_ns
        )


def _most(values: Int64s, limit: int | None = None) -> list[int]:
    """Return where the largest values are, the largest first; of equal ones the first."""
    order: list[int] = np.argsort(-values, kind="stable")[:limit].tolist()
    return order


def per_step_by_kind(path: CriticalPath, n_steps: int) -> dict[PathKindName, int]:
    """Return nanoseconds per step of each kind, or of the recording without steps.

    The rounded times add up to the rounded length of the path.
    """
    total_ns = np.bincount(path.kind, path.lengths_ns, len(PathKind))
    # Rounding the running total lets the rounded parts add up.
    ends = np.round(np.cumsum(total_ns) / max(1, n_steps)).astype(np.int64)
    rounded_ns = np.diff(ends, prepend=0).tolist()
    return {kind.report_name: rounded_ns[kind] for kind in PathKind if total_ns[kind]}


def _longest(items: Iterable[_PathItem], limit: int) -> tuple[_PathItem, ...]:
    """Return the items with the most time, the longest first."""
    return tuple(sorted(items, key=lambda item: -item.ns)[:limit])


def _sampled_lines(sampled: SampledPath, times: _Times) -> Iterator[PathLine]:
    """Yield the sampled functions of the Python time on the path."""
    for place, ns in sampled.places:
        figures = times.figures(ns)
        share = figures[-1]
        yield PathLine("python", place.location, *figures, 0, 0, _sampled_name(place), share)


def _sampled_entries(sampled: SampledPath, times: _Times) -> Iterator[PathEntry]:
    for place, ns in sampled.places:
        yield PathEntry("python", _sampled_name(place), place.location, *times.figures(ns), 0)


def _sampled_name(place: SampledPlace) -> str:
    return f"{place.callee}()" if place.callee else place.location.place


def _summarize_lines(
    ctx: Context, segments: PathSegments, ns_by_group: Int64s, times: _Times
) -> Iterator[PathLine]:
    """Yield the recorded lines of the path.

    Args:
        ns_by_group: Time of each group without its sampled functions.
    """
    keys, of = numbered((segments.frame + 1) * len(PathKind) + segments.kind)
    ns = sum_by_key(len(keys), of, ns_by_group)
    n = sum_by_key(len(keys), of, segments.n_by_group)
    n_events = sum_by_key(len(keys), of, segments.n_events_by_group)
    for i in _most(ns, MAX_LINES):
        if not ns[i]:
            continue

        frame, kind = divmod(int(keys[i]), len(PathKind))
        group_indices = np.flatnonzero(of == i)
        # A line is named after its longest group.
        main = group_indices[_most(ns_by_group[group_indices], 1)[0]]

        yield PathLine(
            PathKind(kind).report_name,
            ctx.source.frames[frame - 1].location if frame else Location(),
            *times.figures(int(ns[i])),
            int(n[i]),
            int(n_events[i]),
            name_of_segment(ctx, kind, int(segments.name[main])),
            int(ns_by_group[main]) / times.total_ns,
        )


def _summarize_functions(
    ctx: Context, segments: PathSegments, times: _Times
) -> Iterator[PathFunction]:
    """Yield the functions of the program with most time in operators."""
    frames = ctx.source.frames
    is_operator = segments.kind == PathKind.OPERATOR
    frame = segments.frame[is_operator] + 1
    ns = sum_by_key(len(frames) + 1, frame, segments.ns_by_group[is_operator])[1:]
    n = sum_by_key(len(frames) + 1, frame, segments.n_events_by_group[is_operator])[1:]

    functions = _frames_by_function(ctx).items()
    longest = sorted(functions, key=lambda function: -int(ns[function[1]].sum()))
    for (_, _, first_line), numbers in longest[:MAX_FUNCTIONS]:
        main = numbers[int(np.argmax(ns[numbers]))]
        if ns[main]:
            yield PathFunction(
                frames[main].location,
                first_line,
                *times.figures(int(ns[numbers].sum())),
                int(ns[main]) / times.total_ns,
                int(n[numbers].sum()),
            )


def _frames_by_function(ctx: Context) -> dict[tuple[str, str, int], list[int]]:
    """Return the numbers of the frames by file, name and first line of their function.

    Left out are functions whose definition is not known, and those that run the steps: they take
    all of their time, which says nothing.
    """
    definitions = find_definitions(ctx.source.frames, ctx.trace.capture)
    by_function: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for number, definition in enumerate(definitions):
        _, function, first_line = definition
        if first_line and function != MODULE_LEVEL:
            by_function[definition].append(number)

    optimizer_steps = np.flatnonzero(are_optimizer_steps(ctx.events))
    for number in distinct(ctx.source.frame[optimizer_steps]).tolist():
        if number != NO_FRAME:
            by_function.pop(definitions[number], None)
    return by_function


def _summarize_entries(
    ctx: Context, segments: PathSegments, ns_by_group: Int64s, times: _Times
) -> Iterator[PathEntry]:
    most_ns, longest = np.zeros((2, len(segments.kind)), dtype=np.int64)
    np.maximum.at(most_ns, segments.group, segments.length_ns)
    is_longest = np.flatnonzero(segments.length_ns == most_ns[segments.group])
    # If several segments are the longest, the last one stands for the group.
    longest[segments.group[is_longest]] = is_longest

    for i in _most(ns_by_group, MAX_ENTRIES):
        if not ns_by_group[i]:
            continue

        kind = int(segments.kind[i])
        yield PathEntry(
            PathKind(kind).report_name,
            name_of_segment(ctx, kind, int(segments.name[i])),
            ctx.location(int(segments.cause[longest[i]])),
            *times.figures(int(ns_by_group[i])),
            int(segments.n_by_group[i]),
        )


def _summarize_blocking_calls(
    ctx: Context, path: CriticalPath, times: _Times
) -> Iterator[BlockingCall]:
    """Yield the calls that block the host while the path is on a device."""
    events, frames = ctx.events, ctx.source.frames
    on_device = path.lane == NO_ROW
    work = union(path.starts_ns[on_device], path.ends_ns[on_device])

    rows = ctx.syncs.rows
    blocked_ns = covered_within(work, events.ts_ns[rows], events.end_ns[rows])
    rows, blocked_ns = rows[blocked_ns > 0], blocked_ns[blocked_ns > 0]

    # Name and source line become one number, in which 0 stands for no line.
    keys = events.name[rows].astype(np.int64) * (len(frames) + 1) + ctx.source.frame[rows] + 1
    unique_keys, of = numbered(keys)
    ns, n = sum_by_key(len(unique_keys), of, blocked_ns), np.bincount(of)

    for i in _most(ns, MAX_BLOCKING):
        call_indices = np.flatnonzero(of == i)
        longest = call_indices[blocked_ns[call_indices] == blocked_ns[call_indices].max()][-1]
        row = int(rows[longest])

        yield BlockingCall(
            events.name_of(row), ctx.location(row), *times.figures(int(ns[i])), int(n[i])
        )
