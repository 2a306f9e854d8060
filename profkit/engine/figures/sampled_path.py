"""The Python time on the critical path, by the functions that were sampled over the steps."""

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.families.sampled_python import SampledPlace, find_named_places, python_time
from profkit.engine.figures.path_segments import PathSegments
from profkit.index.intervals import covered_within
from profkit.index.replay.path import CriticalPath
from profkit.index.sums import sum_by_key
from profkit.model.critical_path import PathKind
from profkit.model.events import NO_ROW, Category, Int64s, Mask


@dataclass(frozen=True)
class SampledPath:
    """The time of a critical path, with the time of sampled functions apart.

    Attributes:
        ns_by_group: Time of each group of segments without the functions. Shape ``(g,)``.
        places: The functions, and their time on the path.
    """

    ns_by_group: Int64s
    places: tuple[tuple[SampledPlace, int], ...] = ()


def build_sampled_path(ctx: Context, path: CriticalPath, segments: PathSegments) -> SampledPath:
    """Return the time of each group of segments, and of the sampled functions.

    If the path is on a device for a part of the Python time, each function has the same share of
    the remaining time.
    """
    places = find_named_places(ctx)
    is_python = _is_unnamed(ctx, path, segments)
    python_ns = int(path.lengths_ns[is_python].sum())
    if not places or not python_ns:
        return SampledPath(segments.ns_by_group)

    steps = ctx.steps
    steps_ns = steps.total_ns
    host_ns = int(covered_within(python_time(ctx), steps.starts_ns, steps.ends_ns).sum())
    on_path = min(1.0, python_ns / max(1, host_ns))
    shown = tuple((place, round(place.share * steps_ns * on_path)) for place in places)
    taken_ns = min(python_ns, sum(ns for _, ns in shown))

    # Each group loses the same share; rounding is made up for in the largest.
    group, lengths_ns = segments.group[is_python], path.lengths_ns[is_python]
    by_group = sum_by_key(len(segments.kind), group, lengths_ns)
    removed = by_group * taken_ns // python_ns
    removed[np.argmax(by_group)] += taken_ns - removed.sum()
    return SampledPath(np.maximum(segments.ns_by_group - removed, 0), shown)


def _is_unnamed(ctx: Context, path: CriticalPath, segments: PathSegments) -> Mask:
    """Return which segments are Python of the steps in no recorded function. Shape ``(p,)``.

    Regions that the program or torch marks say less than a function and its line.
    """
    category = np.append(ctx.events.category, Category.ANNOTATION)[path.row]
    step_lanes = ctx.events.lane[ctx.steps.rows]
    is_profkits = segments.name[segments.group] == len(ctx.events.names)
    return np.asarray(
        (path.kind == PathKind.PYTHON)
        & ((path.row == NO_ROW) | (category == Category.ANNOTATION))
        & np.isin(path.lane, step_lanes)
        & ~is_profkits
    )
