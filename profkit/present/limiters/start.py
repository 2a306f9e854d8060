"""What happens once: cold starts and long first steps of a process, and a single long step."""

from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Final

from profkit.model.report import Report
from profkit.present.limiters.candidates import MAJORITY, Candidate, Cause
from profkit.present.limiters.lines import PYTHON, describe_main_line
from profkit.present.limiters.window import (
    BUSY_MACHINE,
    MIN_SHARE,
    Window,
    find_import_time,
    find_path_of,
)
from profkit.units import format_ns, format_share

_MIN_OTHER_STEPS: Final = 2
"""Of two steps the longer one may be the usual one."""
_CAPTURED: Final = "captured_in_steps_ns"
"""Evidence of cold-start."""


def find_cold_starts(window: Window) -> Iterator[Candidate]:
    """Yield how long the first steps take, or how long launches load code and libraries."""
    path = window.report.summary.critical_path
    cold_ns = path.cold_start_ns if path is not None else 0
    if window.first:
        yield _describe_first_steps(window, cold_ns)
        return

    if path is None or window.report.ranks or not path.total_ns:
        return
    share = cold_ns / path.total_ns
    if share >= MIN_SHARE:
        of_all = " of all steps" if path.per_step_ns is not None else " of the recording"
        cold = f"Cold start takes {format_ns(cold_ns)} ({format_share(share)}{of_all})"
        sentence = f"{cold}: launches that first load code and libraries."
        yield Candidate(Cause.COLD_START, share, sentence)


def _describe_first_steps(window: Window, cold_ns: int) -> Candidate:
    """Return how long the first steps take; their share is what they take more than others do."""
    n_first, n_all = len(window.first), len(window.report.summary.steps)
    first_ns = sum(step.time_ns for step in window.first)
    excess_ns = first_ns - n_first * window.breakdown.mean_ns
    share = excess_ns / (first_ns + window.breakdown.total_ns)

    reasons = {
        "while a CUDA graph is captured": find_captured_time(window.report),
        "for launches that first load code and libraries": cold_ns,
        "for imports": find_import_time(window.report.summary.critical_path),
    }
    reason, reason_ns = max(reasons.items(), key=lambda item: item[1])
    why = f", {format_ns(reason_ns)} of it {reason}" if reason_ns >= MIN_SHARE * first_ns else ""
    which = f"first {n_first} of {n_all} steps take" if n_first > 1 else "first step takes"
    return Candidate(Cause.COLD_START, share, f"The {which} {format_ns(first_ns)}{why}.")


def find_long_step(window: Window) -> Candidate | None:
    """Return that one of several steps takes most of the time; None where no single step does."""
    report = window.report
    steps = report.summary.steps
    # A step may be long because other programs took its core.
    is_busy = any(fault.name == BUSY_MACHINE for fault in report.health)
    if window.first or report.ranks or is_busy or len(steps) <= _MIN_OTHER_STEPS:
        return None
    longest = max(range(len(steps)), key=lambda index: steps[index].time_ns)
    usual_ns, long_ns = median(step.time_ns for step in steps), steps[longest].time_ns
    share = (long_ns - usual_ns) / max(1, sum(step.time_ns for step in steps))
    if share < MAJORITY:
        return None

    path = find_path_of(window.path, slice(longest, longest + 1))
    most = describe_main_line(replace(window, path=path), "operator", "data-wait", *PYTHON)
    which = f"One of {len(steps)} steps takes {format_ns(long_ns)}"
    return Candidate(
        Cause.LONG_STEP, share, f"{which}, the median step {format_ns(usual_ns)}{most}."
    )


def find_captured_time(report: Report) -> int:
    """Return how many nanoseconds devices are idle because graphs are captured."""
    times_ns = (fault.evidence.get(_CAPTURED) for fault in report.health)
    return next((time_ns for time_ns in times_ns if isinstance(time_ns, int)), 0)
