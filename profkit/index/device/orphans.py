"""Orphans: device work without its launch, and launches without their device work."""

from typing import Final

import numpy as np

from profkit.index.device.graph_captures import find_captures
from profkit.index.device.streams import stream_numbers
from profkit.index.intervals import inside
from profkit.index.launches import Launches
from profkit.index.runtime_calls import CallKind
from profkit.model.events import NO_ROW, EventTable, Int64s, Rows
from profkit.patterns import regex

KERNEL_LAUNCH: Final = CallKind(
    regex(
        r"^(cuda|hip)(Launch(Cooperative)?Kernel|ExtLaunchKernel|ExtModuleLaunchKernel|"
        r"ModuleLaunch(Cooperative)?Kernel)|^cuLaunch(Cooperative)?Kernel"
    )
)
"""Calls that launch exactly one kernel."""


def orphans_from_before_recording(events: EventTable, launches: Launches) -> Rows:
    """Find orphans that were launched before the recording, ascending.

    Streams run work in launch order. So an orphan was launched before the recording if it precedes
    the first launched work of its stream, or of any stream if its own has only orphans.
    """
    rows, first_ns = _find_orphans(events, launches)
    return rows[events.ts_ns[rows] < first_ns]


def orphans_with_lost_launch(events: EventTable, launches: Launches) -> Rows:
    """Find orphans whose launch should be in the recording, ascending."""
    rows, first_ns = _find_orphans(events, launches)
    return rows[events.ts_ns[rows] >= first_ns]


def _find_orphans(events: EventTable, launches: Launches) -> tuple[Rows, Int64s]:
    """Find orphans, and the time before which each may be from before the recording."""
    work, has_launch = launches.work, launches.launch != NO_ROW
    group = stream_numbers(events, work)
    never = np.iinfo(np.int64).max
    first_ns = np.full(int(group.max(initial=-1)) + 1, never, dtype=np.int64)
    np.minimum.at(first_ns, group[has_launch], events.ts_ns[work[has_launch]])
    first_of_all_ns = int(first_ns.min(initial=never)) if has_launch.any() else 0
    first_ns[first_ns == never] = first_of_all_ns
    return work[~has_launch], first_ns[group[~has_launch]]


def find_launches_without_work(events: EventTable, launches: Launches) -> tuple[Rows, Rows]:
    """Find calls that launch a kernel, and the calls whose kernel is not in the recording.

    Launches during graph capture run nothing, and launches after the last one with recorded work
    may have run after the recording: neither count. Without any recorded work all launches do.

    Returns:
        Rows of all launching calls, and rows of the calls without work; both ascending.
    """
    calls = KERNEL_LAUNCH.rows(events)
    calls = calls[~inside(find_captures(events), events.ts_ns[calls])]
    has_work = np.isin(calls, launches.launch)
    if not has_work.any():
        return calls, calls

    last_ns = events.ts_ns[calls[has_work]].max()
    return calls, calls[~has_work & (events.ts_ns[calls] < last_ns)]
