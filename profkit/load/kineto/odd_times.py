"""Events whose times make no sense, set aside before they become the total."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from profkit.load.kineto.batch import Columns
from profkit.model.events import MISSING, Int64s, Mask
from profkit.model.trace import OddEvent

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
    reason = np.select(
        [(starts == MISSING) | (lengths == MISSING), lengths < 0, lengths > _LONGEST_NS],
        [1, 2, 3],
    ).astype(np.uint8)
    sane = np.flatnonzero(reason == 0)
    outlier = _outlier(starts[sane], starts[sane] + lengths[sane])
    if outlier is not None:
        reason[sane[outlier]] = 4
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


def _outlier(starts: Int64s, ends: Int64s) -> int | None:
    """The one event that begins or ends far away from all others, if there is one."""
    if len(starts) < _FEWEST_EVENTS:
        return None
    first, second = np.partition(starts, 1)[:2].tolist()
    before_last, last = np.partition(ends, -2)[-2:].tolist()
    for beyond, candidate in (
        (last - before_last, int(np.argmax(ends))),
        (second - first, int(np.argmin(starts))),
    ):
        others_first = second if starts[candidate] == first else first
        others_last = before_last if ends[candidate] == last else last
        if beyond > max(_TIMES_THE_WINDOW * (others_last - others_first), _FARTHEST_NS):
            return candidate
    return None
