"""What happens once: cold starts and long first steps of a process; and steps of other kinds."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import mean
from typing import Final

from profkit.model.report import Report
from profkit.model.step_summary import StepSummary
from profkit.present.labels import part_label
from profkit.present.limiters.candidates import Candidate, Cause
from profkit.present.limiters.lines import PYTHON, describe_main_line
from profkit.present.limiters.window import (
    MIN_SHARE,
    Window,
    find_import_time,
    find_path_of,
)
from profkit.units import format_ns, format_share

_CAPTURED: Final = "captured_in_steps_ns"
"""Evidence of cold-start."""


def find_cold_starts(window: Window) -> Iterator[Candidate]:
    """Yield how long the first steps take, or how long launches load code and libraries."""
    path = window.report.summary.critical_path
    cold_ns = path.cold_start_ns if path is not None else 0
    share = find_cold_share(window)
    if window.follows_long_start:
        yield _describe_first_steps(window, cold_ns)
    elif share >= MIN_SHARE and path is not None:
        of_all = " of all steps" if path.per_step_ns is not None else " of the recording"
        cold = f"Cold start takes {format_ns(cold_ns)} ({format_share(share)}{of_all})"
        sentence = f"{cold}: launches that first load code and libraries."
        yield Candidate(Cause.COLD_START, share, sentence)


def find_cold_share(window: Window) -> float:
    """Return the share of all steps in launches that load code; 0 where first steps are apart."""
    path = window.report.summary.critical_path
    if path is None or window.report.ranks or window.follows_long_start or not path.total_ns:
        return 0.0
    return path.cold_start_ns / path.total_ns


def _describe_first_steps(window: Window, cold_ns: int) -> Candidate:
    """Return how long the first steps take; their share is what they take more than others do."""
    n_first, n_all = len(window.left_out), len(window.report.summary.steps)
    first_ns = sum(step.time_ns for step in window.other_steps)
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


def find_other_steps(window: Window) -> Candidate | None:
    """Return how long steps of another kind take, and with what; None where all are of one kind.

    Its share is what they take more than the others do.
    """
    if not window.left_out or window.follows_long_start:
        return None
    lengths, usual_ns = [step.time_ns for step in window.other_steps], window.breakdown.mean_ns
    excess_ns = sum(max(0, length - usual_ns) for length in lengths)
    share = excess_ns / (sum(lengths) + window.breakdown.total_ns)

    # What shorter steps lack is no part of them.
    most = _describe_excess(window) if excess_ns else ""
    n_all, time = len(window.report.summary.steps), format_ns(mean(lengths))
    is_one = len(lengths) == 1
    which = f"One of {n_all} steps takes" if is_one else f"{len(lengths)} of {n_all} steps take"
    about = time if is_one else f"{time} on average"
    sentence = f"{which} {about}, the others {format_ns(usual_ns)}{most}."
    return Candidate(Cause.OTHER_STEPS, share, sentence)


def _describe_excess(window: Window) -> str:
    """Return what the other steps spend most time in; empty if the usual ones do so, too."""
    path = find_path_of(window.report.summary.critical_path, window.left_out)
    main = [(p.lines[0].kind, p.lines[0].location) for p in (path, window.path) if p and p.lines]
    if len(main) > len(set(main)):
        return ""
    line = describe_main_line(replace(window, path=path), "operator", "data-wait", *PYTHON)
    return line or _describe_main_part(window.other_steps)


def _describe_main_part(steps: Sequence[StepSummary]) -> str:
    """Return ``: 60% waiting for data``, of the largest part of some steps' time."""
    ns_by_kind: Counter[str] = Counter()
    for step in steps:
        ns_by_kind.update({part.kind: part.ns for part in step.parts})
    ((kind, ns),) = ns_by_kind.most_common(1)
    return f": {format_share(ns / ns_by_kind.total())} {part_label(kind)}"


def find_captured_time(report: Report) -> int:
    """Return how many nanoseconds devices are idle because graphs are captured."""
    times_ns = (fault.evidence.get(_CAPTURED) for fault in report.health)
    return next((time_ns for time_ns in times_ns if isinstance(time_ns, int)), 0)
