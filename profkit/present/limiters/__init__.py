"""What limits a program: candidates for the first sentence of a report, and the choice.

Each source of a report (the device, the host, samples, the start of the process) offers candidates:
a sentence on one cause, and the share of the time that it takes. The one with the largest share is
chosen.
"""

from collections.abc import Iterator

from profkit.present.limiters.candidates import MAJORITY, Candidate, Cause, choose
from profkit.present.limiters.device import find_device_candidates
from profkit.present.limiters.host import find_host_candidates
from profkit.present.limiters.job import describe_job_limiter, find_job_limiter
from profkit.present.limiters.lines import (
    has_named_python,
    main_function,
    runs_short_operators,
    spends_time_in_calls,
)
from profkit.present.limiters.loader import find_hidden_wait
from profkit.present.limiters.start import find_cold_starts, find_other_steps
from profkit.present.limiters.window import BUSY_MACHINE, Window, choose_window

__all__ = [
    "BUSY_MACHINE",
    "MAJORITY",
    "Candidate",
    "Cause",
    "Window",
    "choose",
    "choose_window",
    "describe_job_limiter",
    "find_candidates",
    "find_job_limiter",
    "has_named_python",
    "main_function",
    "runs_short_operators",
    "spends_time_in_calls",
]


def find_candidates(window: Window | None) -> Iterator[Candidate]:
    """Yield a sentence for each cause that takes a part of the time.

    Args:
        window: What :func:`choose_window` returned for the report.
    """
    if window is None:
        return
    hidden = find_hidden_wait(window.report)
    on_device = window.breakdown.on_device
    find_recorded = find_device_candidates if on_device else find_host_candidates
    for candidate in find_recorded(window):
        yield candidate if hidden is None else candidate.in_longer_steps(1 - hidden.share)
    if hidden is not None:
        yield hidden
    yield from find_cold_starts(window)
    other_steps = find_other_steps(window)
    if other_steps is not None:
        yield other_steps
