"""Captures of graphs: launches during a capture are noted in the graph, and run nothing."""

from typing import Final

import numpy as np

from profkit.index.intervals import Intervals, union
from profkit.index.runtime_calls import CallKind
from profkit.model.events import EventTable
from profkit.patterns import regex

_CAPTURE_BEGIN: Final = CallKind(regex(r"^(cuda|hip|cu)StreamBeginCapture"))
_CAPTURE_END: Final = CallKind(regex(r"^(cuda|hip|cu)StreamEndCapture"))


def find_captures(events: EventTable) -> Intervals:
    """Find the time in which a stream is captured, from the calls that begin and end it.

    A capture without an end lasts until the end of the recording.
    """
    begins = _CAPTURE_BEGIN.rows(events)
    if not len(begins):
        return union(np.zeros(0, np.int64), np.zeros(0, np.int64))

    # Several streams can be captured at once: time counts while more have begun than ended.
    starts_ns = np.sort(events.ts_ns[begins])
    ends_ns = np.sort(events.end_ns[_CAPTURE_END.rows(events)])
    moments = np.concatenate((starts_ns, ends_ns))
    changes = np.concatenate((np.ones(len(starts_ns), int), -np.ones(len(ends_ns), int)))
    order = np.argsort(moments, kind="stable")
    moments, n_open = moments[order], np.cumsum(changes[order])

    until_ns = np.append(moments[1:], events.end_ns.max())
    is_capturing = n_open > 0
    return union(moments[is_capturing], until_ns[is_capturing])
