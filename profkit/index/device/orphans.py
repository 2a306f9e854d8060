"""Orphans: device work without its launch, and launches without their device work."""

from typing import Final

import numpy as np

from profkit.index.device.streams import stream_numbers
from profkit.index.launches import Launches
from profkit.index.runtime_calls import CallKind
from profkit.model.events import NO_ROW, EventTable, Int64s, Mask, Rows
from profkit.patterns import regex

KERNEL_LAUNCH: Final = CallKind(
    regex(
        r"^(cuda|hip)(Launch(Cooperative)?Kernel|ExtLaunchKernel|ExtModuleLaunchKernel|"
        r"ModuleLaunch(Cooperative)?Kernel)|^cuLaunch(Cooperative)?Kernel"
    )
)
"""Calls that launch exactly one kernel."""
_CAPTURE_BEGIN: Final = CallKind(regex(r"^(cuda|hip|cu)StreamBeginCapture"))
_CAPTURE_END: Final = CallKind(regex(r"^(cuda|hip|cu)StreamEndCapture"))


def orphans_from_before_recording(events: EventTable, launches: Launches) -> Rows:
    """Orphans that were launched before the recording, ascending.

    Streams run work in launch order. So an orphan was launched before the recording if it precedes
    the first work of its stream that has a launch; on a stream of only orphans, the first launched
    work of any stream.
    """
    rows, first_ns = _orphans(events, launches)
    return rows[events.ts_ns[rows] < first_ns]


def orphans_with_lost_launch(events: EventTable, launches: Launches) -> Rows:
    """Orphans whose launch should be in the recording, ascending."""
    rows, first_ns = _orphans(events, launches)
    return rows[events.ts_ns[rows] >= first_ns]


def _orphans(events: EventTable, launches: Launches) -> tuple[Rows, Int64s]:
    """Orphans, and the time before which each may be from before the recording."""
    work, has = launches.work, launches.launch != NO_ROW
    group = stream_numbers(events, work)
    never = np.iinfo(np.int64).max
    first_ns = np.full(int(group.max(initial=-1)) + 1, never, dtype=np.int64)
    np.minimum.at(first_ns, group[has], events.ts_ns[work[has]])
    first_of_all_ns = int(first_ns.min(initial=never)) if has.any() else 0
    first_ns[first_ns == never] = first_of_all_ns
    return work[~has], first_ns[group[~has]]


def launches_without_work(events: EventTable, launches: Launches) -> tuple[Rows, Rows]:
    """Calls that launch a kernel, and those whose kernel is not in the recording.

    Excluded are launches during graph capture, which run nothing, and those after the last launch
    with recorded work: their work may have run after the recording. Without any recorded work all
    launches are included.

    Returns:
        Rows of all launching calls, and rows of those without work; both ascending.
    """
    calls = KERNEL_LAUNCH.rows(events)
    calls = calls[~_while_capturing(events, calls)]
    with_work = np.isin(calls, launches.launch)
    if not with_work.any():
        return calls, calls
    last_ns = events.ts_ns[calls[with_work]].max()
    return calls, calls[~with_work & (events.ts_ns[calls] < last_ns)]


def _while_capturing(events: EventTable, calls: Rows) -> Mask:
    """Which calls happen during a graph capture. Shape of ``calls``."""
    begins = np.sort(events.ts_ns[_CAPTURE_BEGIN.rows(events)])
    ends = np.sort(events.ts_ns[_CAPTURE_END.rows(events)])
    at_ns = events.ts_ns[calls]
    begun = np.searchsorted(begins, at_ns, side="right")
    ended = np.searchsorted(ends, at_ns, side="right")
    return np.asarray(begun > ended)
