"""Finds events with invalid times, so that no total includes them."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from profkit.model.events import (
    DEVICE_WORK,
    HOST_CALLS,
    MISSING,
    Category,
    Int32s,
    Int64s,
    Mask,
    Rows,
)
from profkit.model.trace import LOST_TIME, InvalidEvent
from profkit.readers.kineto.batch import Columns

MAX_NS: Final = 366 * 24 * 3600 * 10**9
"""No recording lasts a year; a longer duration is an overflow."""
_MIN_EVENTS: Final = 20
"""With fewer events it is not clear which of them is the outlier."""
_MAX_RATIO: Final = 10
_MAX_DISTANCE_NS: Final = 600 * 10**9
"""A single event that makes a recording more than ten times and ten minutes longer has an invalid
time: no kernel takes that long, and a real outermost call comes with others that end with it."""
_MIN_CONTAINED: Final = 50
"""Kernels of a stream run one after the other, so no kernel can contain this many later ones."""
_MAX_OVERLAPPING_SHARE: Final = 0.01
"""Where more kernels of a stream overlap, as in CUDA graphs, an overlap is not an error."""
_REASONS: Final = (
    "",
    "its start or duration is not a valid number",
    "its duration is negative",
    "it lasts more than a year",
    "it alone makes the recording more than ten times as long",
    "it contains many later kernels of its stream",
    LOST_TIME,
)
_OF_DEVICES: Final = (*DEVICE_WORK, *HOST_CALLS)
"""Categories of events whose times Kineto converts whenever it writes them: to 0 if they are before
the start of the profiler that stopped last. Source: see ``ProfilerRecording.keep_device_times``."""


def find_invalid_times(
    columns: Columns, names: Sequence[str]
) -> tuple[tuple[InvalidEvent, ...], Mask]:
    """Find events with invalid times.

    Args:
        columns: ``ts_ns``, ``dur_ns``, ``category``, ``lane``, ``name`` and ``position``, each of
            shape ``(n,)``.
        names: The texts that ``name`` refers to.

    Returns:
        The invalid events, and a mask of the valid ones, of shape ``(n,)``.
    """
    starts, lengths = columns["ts_ns"], columns["dur_ns"]

    # A later reason replaces an earlier one, which may follow from it: MISSING is negative.
    reason = np.zeros(len(starts), dtype=np.uint8)
    reason[lengths > MAX_NS] = 3
    reason[lengths < 0] = 2
    reason[(starts == MISSING) | (lengths == MISSING)] = 1

    # Each test compares an event with the others, so it must not see events that are invalid.
    kernels = np.flatnonzero((columns["category"] == Category.KERNEL) & (reason == 0))
    reason[_find_containing(kernels, columns["lane"], starts, lengths)] = 5
    reason[_find_without_time(columns)] = 6
    outlier = _find_outlier(starts, lengths, reason == 0)
    if outlier is not None:
        reason[outlier] = 4

    invalid = tuple(
        InvalidEvent(
            position=int(columns["position"][row]),
            name=names[columns["name"][row]],
            dur_ns=None if lengths[row] == MISSING else int(lengths[row]),
            reason=_REASONS[reason[row]],
        )
        for row in np.flatnonzero(reason).tolist()
    )
    return invalid, np.asarray(reason == 0)


def _find_containing(kernels: Rows, lanes: Int32s, starts: Int64s, lengths: Int64s) -> Rows:
    """Find kernels with an overflowed duration: they last over many later ones of their stream.

    Args:
        kernels: Rows with valid times.
    """
    kernels = kernels[np.lexsort((starts[kernels], lanes[kernels]))]
    containing = [kernels[:0]]
    for rows in np.split(kernels, np.flatnonzero(np.diff(lanes[kernels])) + 1):
        begins = starts[rows]
        n_later = np.searchsorted(begins, begins + lengths[rows]) - np.arange(len(rows)) - 1
        is_containing = n_later >= _MIN_CONTAINED
        if not is_containing.any():
            continue

        plausible = rows[~is_containing]
        ends = np.maximum.accumulate(starts[plausible] + lengths[plausible])
        n_overlapping = int(np.count_nonzero(starts[plausible][1:] < ends[:-1]))
        if n_overlapping <= _MAX_OVERLAPPING_SHARE * len(plausible):
            containing.append(rows[is_containing])
    return np.concatenate(containing)


def _find_without_time(columns: Columns) -> Rows:
    """Find the events of devices at 0 with a length of 0, where there are several."""
    is_zero = (columns["ts_ns"] == 0) & (columns["dur_ns"] == 0)
    rows = np.flatnonzero(is_zero & np.isin(columns["category"], _OF_DEVICES))
    return rows if len(rows) > 1 else rows[:0]


def _find_outlier(starts: Int64s, lengths: Int64s, is_valid: Mask) -> int | None:
    """Return the row of the one valid event that begins or ends far from all others, or None."""
    if np.count_nonzero(is_valid) < _MIN_EVENTS:
        return None
    # Columns of large traces are large: no copy where all events are valid.
    rows = None if is_valid.all() else np.flatnonzero(is_valid)
    starts = starts if rows is None else starts[rows]
    ends = starts + (lengths if rows is None else lengths[rows])

    for candidate in (int(np.argmax(ends)), int(np.argmin(starts))):
        parts = (slice(0, candidate), slice(candidate + 1, None))
        first = min(int(starts[part].min()) for part in parts if len(starts[part]))
        last = max(int(ends[part].max()) for part in parts if len(ends[part]))
        distance = max(int(ends[candidate]) - last, first - int(starts[candidate]))
        if distance > max(_MAX_RATIO * (last - first), _MAX_DISTANCE_NS):
            return candidate if rows is None else int(rows[candidate])
    return None
