"""The outcome of each budget."""

import math
from collections.abc import Sequence
from typing import Final

from profkit._version import __version__
from profkit.budgets.baseline import Baseline, devices_of, first
from profkit.budgets.figures import (
    PEAK,
    STEP_TIME,
    SYNCS,
    BudgetFigure,
    Measured,
    Unknown,
    find_causes,
    measure,
    measure_without_delay,
    peak_sites,
)
from profkit.budgets.limits import BudgetLimit
from profkit.model.check import BudgetResult, Check, Outcome
from profkit.model.finding import Finding
from profkit.model.memory_summary import PeakSite
from profkit.model.report import Report
from profkit.model.sync_summary import SyncLine

_MAX_CAUSES: Final = 3
_MIN_SITE_SHARE: Final = 0.1
_NO_BASELINE: Final = "It is relative to a baseline: give one with --baseline FILE."
_NOT_IN_BASELINE: Final = "The baseline does not have it: update it with --update-baseline."
_NOISY: Final = "It is over the limit, but within its noise: record more steps or runs."
_DELAYED: Final = (
    "It is over the limit, but may be within it on an idle machine: other programs used the "
    "cores that the recorded thread needed."
)


def check(
    reports: Sequence[Report], budgets: Sequence[BudgetLimit], baseline: Baseline | None = None
) -> Check:
    """Compare the figures of some recordings of one program with its budgets.

    A count or a size is compared exactly. A time is beyond its limit only if it exceeds it by more
    than three standard errors: a limit is exact, but a limit relative to a baseline has the
    baseline's error too. Times on another device than the baseline's are not compared. A step time
    that other programs' use of the cores may explain is not beyond its limit either.

    Args:
        reports: Of repeated runs, or of the trace and the memory of one run.
    """
    devices = devices_of(reports)
    return Check(
        profkit=__version__,
        paths=tuple(dict.fromkeys(report.source.path for report in reports if report.source.path)),
        devices=devices,
        torch=first(report.source.torch for report in reports),
        revision=first(report.source.revision for report in reports),
        results=tuple(_judge_budget(budget, reports, devices, baseline) for budget in budgets),
    )


def _judge_budget(
    budget: BudgetLimit,
    reports: Sequence[Report],
    devices: tuple[str, ...],
    baseline: Baseline | None,
) -> BudgetResult:
    figure = budget.figure
    now = measure(figure, reports)
    before = baseline.of(figure) if baseline is not None and budget.is_relative else None
    limit = budget.limit(None if before is None else before.value)

    if isinstance(now, Unknown):
        outcome: Outcome = "unknown"
        reason, value, error, n = now.reason, None, None, 0
    else:
        value, error, n = now.value, now.error if figure.is_time else None, now.n
        if limit is None:
            outcome, reason = "unknown", _NO_BASELINE if baseline is None else _NOT_IN_BASELINE
        elif before is not None and figure.is_time and not _is_same(devices, baseline):
            # A difference between devices says nothing about the program.
            outcome, reason = "other-device", _devices_text(devices, baseline)
        else:
            outcome = _outcome(now, before, limit)
            reason = _NOISY if outcome == "noisy" else ""
            if outcome == "over" and figure.name == STEP_TIME:
                # Other programs may have delayed the steps: without that time the limit may hold.
                undelayed = measure_without_delay(figure, reports)
                if isinstance(undelayed, Measured) and _outcome(undelayed, before, limit) != "over":
                    outcome, reason = "noisy", _DELAYED

    is_over = outcome == "over"
    causes = _causes(figure, reports) if is_over else ()

    return BudgetResult(
        name=figure.name,
        title=figure.title,
        unit=figure.unit,
        value=value,
        error=error,
        n=n,
        limit=limit,
        baseline=None if before is None else before.value,
        outcome=outcome,
        reason=reason,
        causes=causes,
        sites=_sites(now, reports) if is_over and figure.name == PEAK else (),
        sync_lines=_sync_lines(causes, reports)
        if (outcome, figure.name) == ("over", SYNCS)
        else (),
    )


def _outcome(now: Measured, before: Measured | None, limit: int) -> Outcome:
    if now.value <= limit:
        return "ok"
    share = limit / before.value if before is not None and before.value else 1.0

    # The limit is a multiple of the baseline, and so is its error. Independent errors add in
    # squares.
    of_limit = 0 if before is None else before.error
    if now.error is None or of_limit is None:
        return "noisy"
    return "over" if now.value - limit > math.hypot(now.error, of_limit * share) else "noisy"


def _is_same(devices: tuple[str, ...], baseline: Baseline | None) -> bool:
    return baseline is not None and bool(devices) and devices == baseline.devices


def _devices_text(devices: tuple[str, ...], baseline: Baseline | None) -> str:
    recorded = () if baseline is None else baseline.devices
    names = [", ".join(names) or "not known" for names in (devices, recorded)]
    return f"The device is {names[0]}, the baseline's is {names[1]}."


def _sites(peak: Measured | Unknown, reports: Sequence[Report]) -> tuple[PeakSite, ...]:
    """Return the lines with a large part of the peak memory."""
    if isinstance(peak, Unknown):
        return ()
    least = _MIN_SITE_SHARE * peak.value
    return tuple(site for site in peak_sites(reports) if site.bytes >= least)[:_MAX_CAUSES]


def _sync_lines(causes: Sequence[Finding], reports: Sequence[Report]) -> tuple[SyncLine, ...]:
    """Return the lines with most syncs, each once, without lines that a finding explains."""
    explained = {(place.file, place.line) for cause in causes for place in cause.locations}

    lines: dict[tuple[str | None, int | None, str | None], SyncLine] = {}
    for line in (line for report in reports for line in report.summary.sync_lines):
        place = line.location
        if (place.file, place.line) not in explained:
            lines.setdefault((place.file, place.line, place.op), line)

    most = sorted(lines.values(), key=lambda line: -line.n_in_step)
    return tuple(most[:_MAX_CAUSES])


def _causes(figure: BudgetFigure, reports: Sequence[Report]) -> tuple[Finding, ...]:
    """Return the first findings that explain a figure; a line of several recordings once."""
    causes: dict[object, Finding] = {}
    for finding in find_causes(figure, reports):
        causes.setdefault((finding.rule, finding.locations[:1]), finding)
    return tuple(causes.values())[:_MAX_CAUSES]
