"""Runs the rules over a recording, with the user's thresholds, and ranks their findings."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields, replace
from typing import Any

from profkit._version import __version__
from profkit.arguments import is_number
from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.detector import Rule, is_health
from profkit.engine.job_context import JobContext
from profkit.engine.needs import first_unmet
from profkit.errors import InternalError, UsageError
from profkit.model.change import together
from profkit.model.finding import Finding, Unchecked
from profkit.model.report import Report, Source, Summary

Overrides = Mapping[str, Mapping[str, Any]]
"""The thresholds to change: by rule name, their names and values."""

OnStage = Callable[[str, int], None]
"""Receives the name of each stage and its duration in nanoseconds."""


@dataclass
class RuleResults:
    """The results of all rules that ran, in the order in which they ran.

    Attributes:
        unchecked: The skipped checks.
        has_crash: Whether a rule crashed.
    """

    findings: list[Finding] = field(default_factory=list)
    unchecked: list[Unchecked] = field(default_factory=list)
    has_crash: bool = False

    @property
    def on_program(self) -> list[Finding]:
        """Findings that are not about the recording."""
        return [finding for finding in self.findings if not is_health(finding.rule)]

    @classmethod
    def joined(cls, every: Iterable["RuleResults"]) -> "RuleResults":
        """Join the results of several runs."""
        joined = cls()
        for results in every:
            joined.findings += results.findings
            joined.unchecked += results.unchecked
            joined.has_crash |= results.has_crash
        return joined


def run_rules(
    ctx: Context | JobContext,
    rules: Iterable[Rule],
    overrides: Overrides,
    *,
    strict: bool = False,
    on_stage: OnStage,
) -> RuleResults:
    """Run rules over one recording, or over the ranks of a job.

    Args:
        overrides: Thresholds that the user changed.
        strict: Raise if a rule crashes, instead of reporting it as skipped.
        on_stage: Called with the duration of each rule.

    Raises:
        InternalError: A rule crashed, and ``strict`` is set.
        UsageError: A threshold is invalid.
    """
    results = RuleResults()
    for rule in rules:
        start_ns = time.perf_counter_ns()
        thresholds = thresholds_for(rule, overrides)
        unmet = first_unmet(ctx, rule.INFO.needs)

        try:
            if unmet is not None:
                skipped = Unchecked(rule.INFO.id, unmet.reason, unmet.remedy)
                results.unchecked.append(skipped)
            else:
                results.findings.extend(rule.detect(ctx, thresholds))
        # A rule, which may be a plugin's, must not cost the user the other rules' findings.
        except Exception as error:
            message = f"The rule {rule.INFO.id} crashed on {ctx.path}: {error!r}."
            hint = "This is a bug in the rule; please report it with the file."
            if strict:
                raise InternalError(message, hint) from error
            results.has_crash = True
            results.unchecked.append(Unchecked(rule.INFO.id, f"The rule crashed: {error!r}.", hint))

        on_stage(f"rule {rule.INFO.id}", time.perf_counter_ns() - start_ns)

    return results


def thresholds_for(rule: Rule, overrides: Overrides) -> Any:  # noqa: ANN401  (each rule has its own)
    """Return the thresholds that a rule runs with.

    Raises:
        UsageError: The rule has no such threshold, or the value is not a number.
    """
    changed = dict(overrides.get(rule.INFO.name, {}))
    defaults = {threshold.name: threshold.default for threshold in fields(rule.Thresholds)}

    for name, value in changed.items():
        if name not in defaults:
            message = f"The rule {rule.INFO.name} has no threshold {name}."
            raise UsageError(message, f"It has {', '.join(defaults) or 'none'}.")
        if not is_number(value):
            message = f"The threshold {name} of {rule.INFO.name} is a number, not {value!r}."
            raise UsageError(message, f"Its default is {defaults[name]}.")

    return rule.Thresholds(**changed)


def report_on(
    source: Source, summary: Summary, results: RuleResults, recoverable_ns: int
) -> Report:
    """Build the report from the recording's figures and the rules' results.

    Args:
        recoverable_ns: Time that the findings on the program save together.
    """
    return Report(
        profkit=__version__,
        source=source,
        summary=replace(summary, recoverable_ns=recoverable_ns),
        findings=ranked(results.on_program),
        unchecked=tuple(results.unchecked),
        health=ranked(finding for finding in results.findings if is_health(finding.rule)),
    )


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings by cost, the costliest first; errors before and notes after everything else.

    An error has no cost: why a program ended early comes before what its steps took.

    Time counts before memory: a slow step costs now, memory only when it runs out. Equal costs are
    ordered by rule and line, so that two reports of one file are identical.
    """
    return tuple(sorted(findings, key=_rank))


def _rank(finding: Finding) -> tuple[bool, bool, int, int, int, str, str, int]:
    first = finding.locations[0] if finding.locations else None
    return (
        finding.severity != "error",
        finding.severity == "note",
        -finding.cost.ranked_ns,
        -(finding.cost.high_ns or 0),
        -(finding.cost.bytes or 0),
        finding.rule,
        (first.file or first.op or "") if first else "",
        (first.line or 0) if first else 0,
    )


def recoverable_ns(ctx: Context, findings: Iterable[Finding]) -> int:
    """Return the time that the fixes of all findings save together: one replay of all changes."""
    changes = [finding.change for finding in findings if finding.change is not None]
    return ctx.time_cost(together(changes)).ns or 0 if changes else 0
