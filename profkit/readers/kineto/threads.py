"""Calls that a profiler wrote beside the thread that made them, put back on it."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from profkit.model.events import Category, Int32s
from profkit.readers.kineto.batch import Columns

_NO_PROCESS: Final = "-1"
_CALLS: Final = (Category.RUNTIME, Category.DRIVER)


def lanes_of_callers(columns: Columns, lanes: Sequence[tuple[str, str]]) -> Int32s:
    """The lane of every event, calls of no process on the lane of their thread.

    A wait on an XPU is written with the thread that waited, but as of process -1. On a lane of its
    own it would be within no operator.

    Args:
        columns: ``lane`` and ``category``, each of shape ``(n,)``.
        lanes: Process and thread of each lane, by number.

    Source: ``libkineto/src/plugin/xpupti/XpuptiActivityHandlers.cpp``, which gives such an
    activity the device -1.

    Returns:
        Shape ``(n,)``. A thread of the same number in several processes, or in none, changes
        nothing.
    """
    found: Int32s = columns["lane"]
    astray = [number for number, (process, _) in enumerate(lanes) if process == _NO_PROCESS]
    if not astray:
        return found
    calls = np.flatnonzero(np.isin(columns["category"], _CALLS))
    rows = calls[np.isin(found[calls], astray)]
    if not len(rows):
        return found
    host = np.isin(columns["category"], (Category.OP, Category.ANNOTATION, *_CALLS))
    by_thread: dict[str, list[int]] = {}
    for number in np.unique(found[host]).tolist():
        if lanes[number][0] != _NO_PROCESS:
            by_thread.setdefault(lanes[number][1], []).append(number)
    moved = np.arange(len(lanes), dtype=np.int32)
    for number in astray:
        candidates = by_thread.get(lanes[number][1], [])
        if len(candidates) == 1:
            moved[number] = candidates[0]
    found = found.copy()
    found[rows] = moved[found[rows]]
    return found
