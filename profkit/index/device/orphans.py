"""Device work without its launch, and launches without their work."""

import re
from typing import Final

import numpy as np

from profkit.index.device.streams import device_of
from profkit.index.launches import Launches
from profkit.index.runtime_calls import CallKind
from profkit.model.events import MISSING, NO_ROW, EventTable, Int64s, Mask, Rows

KERNEL_LAUNCH: Final = CallKind(
    re.compile(
        r"^(cuda|hip)(Launch(Cooperative)?Kernel|ExtLaunchKernel|ExtModuleLaunchKernel|"
        r"ModuleLaunch(Cooperative)?Kernel)|^cuLaunch(Cooperative)?Kernel"
    )
)
"""Calls that launch one kernel each."""
_CAPTURE_BEGIN: Final = CallKind(re.compile(r"^(cuda|hip|cu)StreamBeginCapture"))
_CAPTURE_END: Final = CallKind(re.compile(r"^(cuda|hip|cu)StreamEndCapture"))


def orphans_from_before_recording(events: EventTable, launches: Launches) -> Rows:
    """Device work from before the recording, ascending.

    A stream runs its work in the order of the launches. So what has no launch and precedes the
    first work of its stream that has one was launched before the recording. On a stream whose
    launches are all missing it must precede the first launched work of any stream.
    """
    rows, first_ns = _orphans(events, launches)
    return rows[events.ts_ns[rows] < first_ns]


def orphans_with_lost_launch(events: EventTable, launches: Launches) -> Rows:
    """Device work whose launch should be in the recording and is not, ascending."""
    rows, first_ns = _orphans(events, launches)
    return rows[events.ts_ns[rows] >= first_ns]


def _orphans(events: EventTable, launches: Launches) -> tuple[Rows, Int64s]:
    """Work without a launch, and until when each could have been launched before the recording."""
    work, has = launches.work, launches.launch != NO_ROW
    stream = events.stream.at(work)
    stream = np.where(stream == MISSING, events.lane[work], stream)
    streams, stream_number = np.unique(stream, return_inverse=True)
    both = device_of(events, work).astype(np.int64) * len(streams) + stream_number
    group = np.unique(both, return_inverse=True)[1]
    never = np.iinfo(np.int64).max
    first_ns = np.full(int(group.max(initial=-1)) + 1, never, dtype=np.int64)
    np.minimum.at(first_ns, group[has], events.ts_ns[work[has]])
    first_of_all_ns = int(first_ns.min(initial=never)) if has.any() else 0
    first_ns[first_ns == never] = first_of_all_ns
    return work[~has], first_ns[group[~has]]


def launches_without_work(events: EventTable, launches: Launches) -> tuple[Rows, Rows]:
    """Calls that launch a kernel, and those of them whose kernel is not in the recording.

    Left out are launches while a graph is captured, which run nothing, and those after the last
    launch whose work was recorded: their work may have run after the recording's end. Where no
    work was recorded at all, every launch counts.

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
    """Which calls happen between the begin and the end of a capture. Shape of ``calls``."""
    begins = np.sort(events.ts_ns[_CAPTURE_BEGIN.rows(events)])
    ends = np.sort(events.ts_ns[_CAPTURE_END.rows(events)])
    at_ns = events.ts_ns[calls]
    begun = np.searchsorted(begins, at_ns, side="right")
    ended = np.searchsorted(ends, at_ns, side="right")
    return np.asarray(begun > ended)
