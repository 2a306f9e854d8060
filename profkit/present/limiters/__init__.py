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
    find_recurrent_module,
    has_named_python,
    main_function,
    runs_short_operators,
    spends_time_in_calls,
)
from profkit.present.limiters.loader import (
    find_hidden_wait,
    find_restart_finding,
    find_restarts,
    find_steps_share,
)
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
    "find_recurrent_module",
    "find_restart_finding",
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
    hidden, restarts = find_hidden_wait(window.report), find_restarts(window.report)
    steps_share = find_steps_share(window.report) * (1.0 if hidden is None else 1 - hidden.share)
    on_device = window.breakdown.on_device
    find_recorded = find_device_candidates if on_device else find_host_candidates
    for candidate in find_recorded(window):
        yield candidate.in_longer_steps(steps_share)
    yield from (aside for aside in (hidden, restarts) if aside is not None)
    yield from find_cold_starts(window)
    other_steps = find_other_steps(window)
    if other_steps is not None:
        yield other_steps
