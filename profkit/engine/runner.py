"""Runs the rules over a recording."""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from profkit._version import __version__
from profkit.engine.context import Context
from profkit.engine.detector import Rule
from profkit.engine.figures.summary import source_of, summarize
from profkit.engine.needs import first_unmet
from profkit.engine.ranking import ranked, recoverable_ns
from profkit.engine.thresholds import Overrides, thresholds_for
from profkit.errors import InternalError
from profkit.model.finding import Finding, Unchecked
from profkit.model.report import Report

OnStage = Callable[[str, int], None]
"""Receives the name of each stage and its duration in nanoseconds."""


@dataclass
class RuleResults:
    """The results of all rules that ran, in the order in which they ran.

    Attributes:
        unchecked: The skipped checks.
    """

    findings: list[Finding] = field(default_factory=list)
    unchecked: list[Unchecked] = field(default_factory=list)


def run_rules(
    ctx: Context,
    rules: Iterable[Rule],
    overrides: Overrides,
    *,
    strict: bool = False,
    on_stage: OnStage,
) -> RuleResults:
    """Run rules over one recording.

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
        except Exception as error:
            message = f"The rule {rule.INFO.id} crashed on {ctx.path}: {error!r}."
            hint = "This is a bug in the rule; please report it with the file."
            if strict:
                raise InternalError(message, hint) from error
            results.unchecked.append(Unchecked(rule.INFO.id, f"The rule crashed: {error!r}.", hint))
        on_stage(f"rule {rule.INFO.id}", time.perf_counter_ns() - start_ns)
    return results


def report_on(ctx: Context, results: RuleResults, health_ids: Collection[str]) -> Report:
    """Build the report from the recording's figures and the rules' results.

    Args:
        health_ids: Rules that check the recording instead of the program.
    """
    health = [f for f in results.findings if f.rule in health_ids]
    findings = [f for f in results.findings if f.rule not in health_ids]
    return Report(
        profkit=__version__,
        source=source_of(ctx),
        summary=summarize(ctx, recoverable_ns(findings)),
        findings=ranked(findings),
        unchecked=tuple(results.unchecked),
        health=ranked(health),
    )
