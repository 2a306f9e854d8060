"""What the headline says of a data loader, which a finding has examined."""

from typing import Final

from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.names import visible
from profkit.present.labels import at_place
from profkit.present.limiters.candidates import MAJORITY, Candidate, Cause
from profkit.units import format_ns, format_share

_STARVED: Final = "starved-by-loader"
_RESTARTED: Final = "restarted-workers"


def find_hidden_wait(report: Report) -> Candidate | None:
    """Return that the program waits for data in the steps around the recorded ones; else None."""
    for finding in report.findings:
        share = finding.evidence.get("sampled_wait_share")
        step_ns = finding.evidence.get("sampled_step_ns")
        if finding.name == _STARVED and isinstance(share, float) and isinstance(step_ns, int):
            is_recorded = finding.evidence.get("is_recorded")
            recorded = "waited less" if is_recorded else "found theirs ready"
            sentence = (
                f"The program waits for data for {format_share(share)} of each "
                f"{format_ns(step_ns)} step{describe_loader_function(report)}; the recorded steps "
                f"{recorded}."
            )
            return Candidate(Cause.DATA, share, sentence)
    return None


def find_restarts(report: Report) -> Candidate | None:
    """Return that the run waits for a loader's workers to start anew; None if it does not."""
    restarts = find_restart_finding(report)
    share = _read_share(restarts, "run_share")
    if restarts is None or share is None:
        return None
    sentence = (
        f"Starting the loader's workers anew takes {format_share(share)} of the run"
        f"{at_place(restarts)}."
    )
    return Candidate(Cause.RESTARTS, share, sentence)


def find_restart_finding(report: Report) -> Finding | None:
    """Return the finding on workers that start anew, or None."""
    return next((finding for finding in report.findings if finding.name == _RESTARTED), None)


def find_steps_share(report: Report) -> float:
    """Return how much of a run steps like the recorded ones take, if workers start anew in it."""
    share = _read_share(find_restart_finding(report), "steps_share")
    return 1.0 if share is None else share


def _read_share(finding: Finding | None, name: str) -> float | None:
    """Return a share from a finding's evidence, which a report from a file may lack."""
    share = None if finding is None else finding.evidence.get(name)
    return share if isinstance(share, float) else None


def describe_loader_function(report: Report) -> str:
    """Return ``, mostly in augment at data.py:31``, where the loader takes its time; else empty."""
    for finding in report.findings:
        share = finding.evidence.get("function_share") if finding.name == _STARVED else None
        if isinstance(share, float) and share >= MAJORITY:
            place = finding.locations[-1]
            function = f"in {visible(place.function)} " if place.function else ""
            return f", mostly {function}at {visible(place.place)}"
    return ""
