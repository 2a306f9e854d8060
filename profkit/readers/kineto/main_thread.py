"""Names the program's main thread after its script, where profkit recorded which one it is."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from profkit.model.capture_info import CaptureInfo
from profkit.model.events import EventTable

_FRONTENDS: Final = frozenset({"ipykernel_launcher.py", "colab_kernel_launcher.py"})
"""Scripts that run the cells of a notebook, and are not the user's."""


def script_name(argv: Sequence[str]) -> str:
    """Return the file name of the program, or empty if it has none."""
    name = re.split(r"[/\\]", argv[0])[-1] if argv else ""
    return "" if name.startswith("-") or name in _FRONTENDS else name


def with_main_thread_named(events: EventTable, capture: CaptureInfo | None) -> EventTable:
    """Return the events with the main thread named after the script.

    torch names it like all others, ``thread 41 (python)``. On Linux its number is the process's;
    on other systems the main thread cannot be identified.
    """
    name = script_name(capture.argv) if capture is not None else ""
    if capture is None or capture.pid is None or not name:
        return events
    process = str(capture.pid)
    lanes = tuple(
        replace(lane, thread=name) if lane.pid == lane.tid == process else lane
        for lane in events.lanes
    )
    return replace(events, lanes=lanes)
