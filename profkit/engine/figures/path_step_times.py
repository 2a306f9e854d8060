"""The time on each step's critical path, by kind and by source line."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.engine.figures.path_segments import PathSegments, name_of_segment
from profkit.index.distinct import numbered_pairs
from profkit.index.host.source import NO_FRAME
from profkit.index.replay.path import CriticalPath
from profkit.index.sums import sum_by_key
from profkit.model.critical_path import PathKind, PathLine, PathPart
from profkit.model.events import Int64s, Rows
from profkit.model.location import Location

MAX_LINES: Final = 300
"""Lines of all steps together, as there may be a thousand steps."""


def sum_step_kinds(path: CriticalPath, begins: Rows) -> Int64s:
    """Return the time of each kind in each step. Shape ``(s, kinds)``.

    Args:
        begins: Where each step begins in the path. Shape ``(s,)``.
    """
    n_kinds = len(PathKind)
    step = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(path.step))))
    sums = sum_by_key(len(begins) * n_kinds, step * n_kinds + path.kind, path.lengths_ns)
    return sums.reshape(-1, n_kinds)


def build_step_parts(ns_by_kind: Int64s) -> Iterator[PathPart]:
    """Yield the parts of one step, the longest first.

    Args:
        ns_by_kind: Shape ``(kinds,)``.
    """
    total_ns = int(ns_by_kind.sum())
    for kind in np.argsort(-ns_by_kind, kind="stable").tolist():
        ns = int(ns_by_kind[kind])
        if ns:
            yield PathPart(PathKind(kind).report_name, ns, None, ns / total_ns)


def find_step_lines(
    ctx: Context, path: CriticalPath, segments: PathSegments, steps_ns: Int64s
) -> dict[int, list[PathLine]]:
    """Return the costliest lines of each step, by the step's place, the longest first.

    Args:
        steps_ns: The length of each step's path. Shape ``(s,)``.
    """
    is_new_step = np.diff(path.step, prepend=path.step[:1]) != 0
    step = np.cumsum(is_new_step)
    key = ((segments.frame + 1) * len(PathKind) + segments.kind)[segments.group]
    (place, key), line = numbered_pairs(step, key)
    ns = sum_by_key(len(place), line, path.lengths_ns)
    n_segments = np.bincount(line, minlength=len(place))
    n_events = np.bincount(line[segments.counts_event], minlength=len(place))

    # A line is named after its longest group.
    (of_line, group), of = numbered_pairs(line, segments.group)
    group_ns = sum_by_key(len(of_line), of, path.lengths_ns)
    by_line = np.lexsort((-group_ns, of_line))
    longest = by_line[np.diff(of_line[by_line], prepend=-1) != 0]

    lines: dict[int, list[PathLine]] = defaultdict(list)
    for i in np.argsort(-ns, kind="stable")[:MAX_LINES].tolist():
        frame, kind = divmod(int(key[i]), len(PathKind))
        frame -= 1
        main, step_ns = longest[i], int(steps_ns[place[i]])
        lines[int(place[i])].append(
            PathLine(
                PathKind(kind).report_name,
                Location() if frame == NO_FRAME else ctx.source.frames[frame].location,
                int(ns[i]),
                None,
                int(ns[i]) / step_ns,
                int(n_segments[i]),
                int(n_events[i]),
                name_of_segment(ctx, kind, int(segments.name[group[main]])),
                int(group_ns[main]) / step_ns,
            )
        )
    return lines
