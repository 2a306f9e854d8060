"""Why a device was idle: the words and the colour of each cause, for all formats.

A new cause is a value of ``IdleCause`` in ``profkit/model/device_summary.py`` and an entry here.
"""

from dataclasses import replace
from typing import Final

from profkit.dataclass import dataclass
from profkit.model.step_summary import IDLE


@dataclass(frozen=True)
class IdleText:
    """How a cause of idle time is shown.

    Attributes:
        label: In tables and bars, as ``waiting for data``.
        color: The number of its colour, from 1.
        reason: In the headline after ``The GPU is idle 40% of each step,``; empty where what the
            host does is the reason.
        waits_for: In the headline after ``and waits 30%``; empty where it says ``is idle``.
    """

    label: str
    color: int
    reason: str = ""
    waits_for: str = ""


IDLE_CAUSES: Final[dict[str, IdleText]] = {
    "sync": IdleText(
        "host blocked in a sync",
        4,
        "because the host waits for its results before it launches more",
    ),
    "data": IdleText("waiting for data", 2, "because it waits for data", "for data"),
    "allocator": IdleText("waiting for memory allocation", 7, waits_for="for memory allocation"),
    "overhead": IdleText("profiler overhead", 8, "because of the profiler itself"),
    "host": IdleText("waiting for CPU launches", 1, waits_for="for launches"),
    "launch": IdleText("launch latency", 6, "from launches to the starts of their kernels"),
    "device": IdleText("between queued kernels", 5, "between kernels that are launched already"),
    "unknown": IdleText("unknown cause", 3, "for a cause that the recording does not show"),
}


def idle_text(kind: str) -> IdleText | None:
    """Return how a part of a step's time is shown, by its kind; None if it is not idle time."""
    if not kind.startswith(IDLE):
        return None
    cause = kind.removeprefix(IDLE)
    # A saved report may have been written by a later version, with a cause of its own.
    return IDLE_CAUSES.get(cause) or replace(IDLE_CAUSES["unknown"], label=cause)
