"""What the headline says of a data loader, which a finding has examined."""

from typing import Final

from profkit.model.report import Report
from profkit.names import visible
from profkit.present.limiters.candidates import MAJORITY, Candidate, Cause
from profkit.units import format_ns, format_share

_STARVED: Final = "starved-by-loader"


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


def describe_loader_function(report: Report) -> str:
    """Return ``, mostly in augment at data.py:31``, where the loader takes its time; else empty."""
    for finding in report.findings:
        share = finding.evidence.get("function_share") if finding.name == _STARVED else None
        if isinstance(share, float) and share >= MAJORITY:
            place = finding.locations[-1]
            function = f"in {visible(place.function)} " if place.function else ""
            return f", mostly {function}at {visible(place.place)}"
    return ""
