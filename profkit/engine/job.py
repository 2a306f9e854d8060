"""Puts the reports on the ranks of a job together."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from profkit.engine.context import Context
from profkit.engine.figures.ranks import collectives_summary, rank_summaries
from profkit.engine.job_context import JobContext, RankReport, RuleChoice
from profkit.engine.needs import RANKS
from profkit.engine.rank_lanes import job_lanes, own_time
from profkit.engine.registry import rules
from profkit.engine.runner import RuleResults, ranked, run_rules
from profkit.index.ranks.calls import collective_calls
from profkit.index.ranks.matching import RankCalls
from profkit.model.finding import Finding
from profkit.model.report import Report

_MAX_RANKS: Final = 1 << 20
"""A file that states more ranks is wrong."""


def rank_report(
    ctx: Context, report: Report, choice: RuleChoice | None = None
) -> RankReport | None:
    """The report with the collectives of its trace; None if its rank is not known.

    Args:
        choice: The rules that are to run over the job; by default all.
    """
    trace = ctx.trace
    if trace.rank is None or not len(ctx.events):
        return None
    calls = collective_calls(trace, ctx.tree, ctx.launches, ctx.steps)
    ends = ctx.events.end_ns
    return RankReport(
        trace.path,
        trace.base_ns,
        trace.base_ns + int(ends.max()),
        trace.world_size,
        RankCalls(trace.rank, trace.host, calls),
        own_time(ctx, report.summary.steps),
        report,
        choice or RuleChoice(),
    )


def reduced(rank: RankReport) -> RankReport:
    """A report without what is only shown of the lowest rank of a job.

    It is a tenth as large, and reports on all ranks are in memory together.
    """

    def own(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
        return tuple(replace(each, spans=(), change=None) for each in findings)

    report = rank.report
    summary = replace(
        report.summary,
        top_kernels=(), top_ops=(), modules=(), lines=(), regions=(), sync_sites=None, copies=(),
        memory=None, critical_path=None,
    )  # fmt: skip
    findings, health = own(report.findings), own(report.health)
    slim = replace(report, summary=summary, findings=findings, health=health, unchecked=())
    return replace(rank, report=slim)


def jobs_of(reports: Iterable[RankReport]) -> list[list[RankReport]]:
    """Which reports are of one job: of the same number of ranks, each once, at the same time.

    A rank that was recorded several times has several windows, each with those of the other ranks.

    Returns:
        The reports of each job with more than one rank, by rank.
    """
    open_jobs: list[list[RankReport]] = []
    for each in sorted(reports, key=lambda one: (one.start_ns, one.calls.rank)):
        fitting = (job for job in open_jobs if _belongs(each, job))
        job = next(fitting, None)
        if job is None:
            open_jobs.append([each])
        else:
            job.append(each)
    return [sorted(job, key=lambda one: one.calls.rank) for job in open_jobs if len(job) > 1]


def _belongs(one: RankReport, job: Sequence[RankReport]) -> bool:
    others = {each.calls.rank for each in job}
    same_size = one.world_size == job[0].world_size
    overlaps = any(one.start_ns < each.end_ns and each.start_ns < one.end_ns for each in job)
    return same_size and one.calls.rank not in others and overlaps


def job_report(job: Sequence[RankReport]) -> Report:
    """One report on the ranks of a job, with the findings of the rules over ranks.

    What is of one recording, such as steps and kernels, is that of the lowest rank.

    Args:
        job: By rank.

    Raises:
        InternalError: A rule crashed, and its choice is strict.
    """
    ctx, shown = JobContext(tuple(job)), job[0]
    seen = {each.calls.rank for each in job}
    world_size = shown.world_size or 0
    listed = range(world_size if world_size <= _MAX_RANKS else 0)
    source = replace(
        shown.report.source,
        path=ctx.path,
        kind="ranks",
        n_events=sum(each.report.source.n_events for each in job),
        devices=tuple(dict.fromkeys(name for each in job for name in each.report.source.devices)),
    )
    results = _checked(ctx)
    over_ranks = {rule.INFO.id for rule in rules() if RANKS in rule.INFO.needs}
    skipped = (each for each in shown.report.unchecked if each.rule not in over_ranks)
    return replace(
        shown.report,
        source=source,
        findings=ranked((*_merged(job, "findings"), *results.findings)),
        unchecked=(*skipped, *results.unchecked),
        health=ranked(_merged(job, "health")),
        ranks=rank_summaries(ctx),
        missing_ranks=tuple(rank for rank in listed if rank not in seen),
        collectives=collectives_summary(ctx),
        lanes=job_lanes([(each.path, each.time) for each in job], ctx.matches, ctx.delays),
    )


def _checked(ctx: JobContext) -> RuleResults:
    """Run the rules over ranks that were chosen."""
    choice = ctx.ranks[0].choice
    wanted = (
        rule
        for rule in rules()
        if RANKS in rule.INFO.needs and (choice.ids is None or rule.INFO.id in choice.ids)
    )
    thresholds = choice.thresholds
    return run_rules(ctx, wanted, thresholds, strict=choice.strict, on_stage=lambda *_: None)


def _merged(job: Sequence[RankReport], kind: str) -> list[Finding]:
    """The findings of all ranks: each problem once, where it costs most, with its ranks.

    Those of the same rule and line are one problem.
    """
    by_problem: dict[object, list[tuple[int, Finding]]] = defaultdict(list)
    for each in job:
        for finding in getattr(each.report, kind):
            where = finding.locations[0] if finding.locations else None
            key = (finding.rule, where and (where.file, where.line, where.op))
            by_problem[key].append((each.calls.rank, finding))
    merged = []
    for found in by_problem.values():
        finding = max((each[1] for each in found), key=_cost)
        merged.append(replace(finding, ranks=tuple(sorted({rank for rank, _ in found}))))
    return merged


def _cost(finding: Finding) -> tuple[int, int]:
    return finding.cost.ns or 0, finding.cost.bytes or 0
