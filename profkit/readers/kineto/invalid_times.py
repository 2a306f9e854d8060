"""Events whose times make no sense, set aside before they become the total."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from profkit.model.events import MISSING, Int64s, Mask
from profkit.model.trace import OddEvent
from profkit.readers.kineto.batch import Columns

_LONGEST_NS: Final = 366 * 24 * 3600 * 10**9
"""No recording lasts a year; a length beyond it is an overflow."""
_FEWEST_EVENTS: Final = 20
"""With fewer events there is no telling which of them is out of place."""
_TIMES_THE_WINDOW: Final = 10
_FARTHEST_NS: Final = 600 * 10**9
"""An event that alone makes a recording ten times as long, and by more than ten minutes, did not
happen like that: no kernel runs so long, and the callers of everything are several events that end
together."""
_REASONS: Final = (
    "",
    "its time is no time",
    "its length is negative",
    "it is longer than a year",
    "alone it makes the recording many times as long",
)


def set_aside(columns: Columns, names: Sequence[str]) -> tuple[tuple[OddEvent, ...], Mask]:
    """Find events whose times make no sense.

    Args:
        columns: ``ts_ns``, ``dur_ns``, ``name`` and ``position``, each of shape ``(n,)``.
        names: Names by number.

    Returns:
        The odd events, and which events stay. Shape ``(n,)``.
    """
    starts, lengths = columns["ts_ns"], columns["dur_ns"]
    reason = np.zeros(len(starts), dtype=np.uint8)
    reason[lengths > _LONGEST_NS] = 3
    reason[lengths < 0] = 2
    reason[(starts == MISSING) | (lengths == MISSING)] = 1
    outlier = _outlier(starts, lengths, reason == 0)
    if outlier is not None:
        reason[outlier] = 4
    odd = tuple(
        OddEvent(
            position=int(columns["position"][row]),
            name=names[columns["name"][row]],
            dur_ns=None if lengths[row] == MISSING else int(lengths[row]),
            reason=_REASONS[reason[row]],
        )
        for row in np.flatnonzero(reason).tolist()
    )
    return odd, np.asarray(reason == 0)


def _outlier(starts: Int64s, lengths: Int64s, sane: Mask) -> int | None:
    """The one event that begins or ends far away from all others, if there is one.

    Args:
        starts: Shape ``(n,)``.
        lengths: Shape ``(n,)``.
        sane: Which events count. Shape ``(n,)``.
    """
    if np.count_nonzero(sane) < _FEWEST_EVENTS:
        return None
    # The columns of a large trace are large: they are not copied where all events count.
    all_count = bool(sane.all())
    rows = None if all_count else np.flatnonzero(sane)
    starts = starts if rows is None else starts[rows]
    ends = starts + (lengths if rows is None else lengths[rows])
    for candidate in (int(np.argmax(ends)), int(np.argmin(starts))):
        others = (slice(0, candidate), slice(candidate + 1, None))
        first = min(int(starts[part].min()) for part in others if len(starts[part]))
        last = max(int(ends[part].max()) for part in others if len(ends[part]))
        beyond = max(int(ends[candidate]) - last, first - int(starts[candidate]))
        if beyond > max(_TIMES_THE_WINDOW * (last - first), _FARTHEST_NS):
            return candidate if rows is None else int(rows[candidate])
    return None
