"""What limits a job of several ranks: a rule over all of them has found and replayed it."""

from typing import Final

from profkit.engine.wording import the_ranks
from profkit.model.finding import Finding
from profkit.model.job import Lateness
from profkit.model.report import Report
from profkit.names import visible
from profkit.present.labels import cost_share
from profkit.present.limiters.window import MIN_SHARE
from profkit.units import format_count, format_ns, format_share

_DISAGREEING: Final = "desynchronized-collectives"
_FAILED: Final = "failed-rank"
_STRAGGLING: Final = "straggling-rank"
_WAITING_STAGES: Final = "pipeline-bubble"
_UNEVEN: Final = "uneven-ranks"
_SENTENCE_END: Final = ". "
_WHY: Final[dict[Lateness, str]] = {
    "host": ", because its host is late",
    "data": ", because it waits for data",
    "compute": ", because it computes longer",
    "unknown": "",
}


def find_job_limiter(report: Report) -> Finding | None:
    """Return the finding on what makes the ranks of a job wait; None where it is no rank's fault.

    A collective that ranks are blocked in comes first, then a rank that failed: such a job makes no
    progress.
    """
    findings = [finding for finding in report.findings if finding.severity != "note"]
    blocked = (finding for finding in findings if finding.name == _DISAGREEING)
    costly = (
        finding
        for finding in sorted(findings, key=lambda finding: -finding.cost.ranked_ns)
        if finding.name in {_STRAGGLING, _WAITING_STAGES, _UNEVEN}
        and (cost_share(report, finding) or 0.0) >= MIN_SHARE
    )
    failed = (finding for finding in findings if finding.name == _FAILED)
    return next(blocked, None) or next(failed, None) or next(costly, None)


def describe_job_limiter(report: Report, finding: Finding) -> str:
    """Return the sentence on what :func:`find_job_limiter` has found."""
    if finding.name == _FAILED:
        at = "".join(f" at {place.place}" for place in finding.locations[:1])
        what = f"{the_ranks(finding.ranks).capitalize()} {finding.evidence['what']}"
        return f"{visible(what).rstrip('.')}{at}."
    if finding.name == _DISAGREEING:
        first, _, _ = visible(finding.message).partition(_SENTENCE_END)
        return f"{first.rstrip('.')}."

    costs = _describe_cost(report, finding)
    if finding.name == _WAITING_STAGES:
        return f"Stages of the pipeline wait for each other for {costs}."
    turns = finding.evidence.get("turns")
    if isinstance(turns, str):
        ranks = the_ranks(finding.ranks).capitalize()
        return f"{ranks} make the others wait in turn for {costs}: {turns}."
    if finding.name == _UNEVEN:
        return f"{_describe_uneven_work(finding)}, which costs {costs}."

    rank, why = finding.evidence.get("rank"), finding.evidence.get("why")
    reason = next((text for lateness, text in _WHY.items() if lateness == why), "")
    where = finding.evidence.get("extra_where")
    place = f", most of it {visible(where)}" if isinstance(where, str) else ""
    return f"Rank {rank} makes {_name_others(report, rank)} wait for {costs}{reason}{place}."


def _name_others(report: Report, rank: object) -> str:
    """Return ``rank 0`` or ``the 3 other ranks``: those that wait for a rank."""
    others = [recorded.rank for recorded in report.ranks if recorded.rank != rank]
    if len(others) == 1:
        return the_ranks(others)
    return (
        f"the {format_count(len(others))} other{' recorded' if report.missing_ranks else ''} ranks"
    )


def _describe_uneven_work(finding: Finding) -> str:
    """Return ``Stage 3 (ranks 6 and 7) has more work than the others``."""
    stage = finding.evidence.get("stage")
    if finding.evidence.get("is_changing"):
        return "Ranks have unequally much to compute in a step, each of them sometimes most"
    if not finding.ranks:
        return "Ranks take unequally long from one collective to the next"
    ranks = the_ranks(finding.ranks)
    if stage is not None:
        return f"Stage {stage} ({ranks}) has more work than the others"
    verb = "has" if len(finding.ranks) == 1 else "have"
    return f"{ranks[0].upper()}{ranks[1:]} {verb} more work than the others"


def _describe_cost(report: Report, finding: Finding) -> str:
    """Return ``up to 816 ms of each 2.22 s step of the job (37%)``."""
    slowdown = report.collectives.slowdown if report.collectives is not None else None
    bound = "up to " if finding.cost.basis == "upper-bound" else ""
    share = format_share(cost_share(report, finding) or 0.0)
    if slowdown is None or not slowdown.n_steps or finding.cost.per_step_ns is None:
        return f"{bound}{format_ns(finding.cost.ns or 0)} ({share} of the recording)"
    step = f"each {format_ns(slowdown.recorded_ns)} step of the job"
    return f"{bound}{format_ns(finding.cost.per_step_ns)} of {step} ({share})"
