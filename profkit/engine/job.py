"""Puts the reports on the ranks of a job together."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.families.collectives.extra_time import place_times
from profkit.engine.figures.ranks import collectives_summary, rank_summaries
from profkit.engine.job_context import JobContext, RankReport, RuleChoice
from profkit.engine.needs import is_over_ranks
from profkit.engine.rank_lanes import job_lanes, own_time
from profkit.engine.registry import rules
from profkit.engine.runner import RuleResults, ranked, run_rules
from profkit.index.ranks.activity import find_rank_activity
from profkit.index.ranks.calls import NO_CALLS, find_collective_calls
from profkit.index.ranks.flight import PackedRecord
from profkit.model.finding import Finding
from profkit.model.flight_record import FlightRecord
from profkit.model.location import Location
from profkit.model.report import Report
from profkit.packed import Packed

_DUMP_SLACK_NS: Final = 3_600_000_000_000
"""How far apart the calls of ranks of which some are blocked may be: longer than timeouts are."""
_MAX_RANKS: Final = 1 << 20
"""A file that states more ranks is wrong."""


def rank_report(
    ctx: Context, report: Report, choice: RuleChoice | None = None
) -> RankReport | None:
    """The report with the collectives of its trace or dump; None if its rank is not known.

    Args:
        choice: The rules that are to run over the job; by default all.
    """
    trace, choice = ctx.trace, choice or RuleChoice()
    if not ctx.has_trace and ctx.flights:
        return _dump_report(ctx.flights, report, choice)
    if trace.rank is None or not len(ctx.events):
        return None
    calls = find_collective_calls(trace, ctx.tree, ctx.launches, ctx.steps)
    activity = find_rank_activity(
        trace,
        ctx.tree,
        ctx.launches,
        ctx.steps,
        ctx.devices,
        ctx.is_communication,
        ctx.host_activity["sync"],
        calls.start_ns,
    )
    return RankReport(
        trace.path,
        trace.base_ns,
        trace.base_ns + int(ctx.events.end_ns.max()),
        trace.world_size,
        trace.rank,
        trace.host,
        has_trace=True,
        packed_calls=Packed(calls),
        packed_time=Packed(own_time(ctx, report.summary.steps)),
        packed_activity=Packed(activity),
        packed_places=Packed(place_times(report)),
        packed_report=Packed(_reduced(report)),
        whole=report,
        choice=choice,
        flights=tuple(map(PackedRecord.of, ctx.flights)),
    )


def _dump_report(
    flights: tuple[FlightRecord, ...], report: Report, choice: RuleChoice
) -> RankReport | None:
    """The report on dumps of a rank without a trace."""
    first = flights[0]
    if first.rank is None:
        return None
    times = [call.created_ns for each in flights for call in each.calls if call.created_ns]
    times += [each.written_ns for each in flights if each.written_ns]
    return RankReport(
        first.path,
        min(times, default=0),
        max(times, default=0),
        first.world_size,
        first.rank,
        first.host,
        has_trace=False,
        packed_calls=Packed(NO_CALLS),
        packed_time=Packed(None),
        packed_activity=Packed(None),
        packed_places=Packed(()),
        packed_report=Packed(_reduced(report)),
        whole=report,
        choice=choice,
        flights=tuple(map(PackedRecord.of, flights)),
    )


def _reduced(report: Report) -> Report:
    """A report without what is only shown of the lowest rank of a job: a tenth as large."""
    with_spans = {rule.INFO.id for rule in rules() if hasattr(rule, "over_ranks")}

    def own(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
        return tuple(
            replace(each, spans=each.spans if each.rule in with_spans else (), change=None)
            for each in findings
        )

    summary = replace(
        report.summary,
        top_kernels=(), top_ops=(), modules=(), lines=(), regions=(), sync_sites=None, copies=(),
        memory=None, critical_path=None,
    )  # fmt: skip
    findings, health = own(report.findings), own(report.health)
    return replace(report, summary=summary, findings=findings, health=health, unchecked=())


def jobs_of(reports: Iterable[RankReport]) -> list[list[RankReport]]:
    """Which reports are of one job: of the same number of ranks, each once, at the same time.

    A rank that was recorded several times has several windows, each with those of the other ranks.

    Dumps of the FlightRecorder belong to the traces of the same time. Those without one are jobs.

    Returns:
        The reports of each job with more than one, by rank, traces first.
    """
    open_jobs: list[list[RankReport]] = []
    in_order = sorted(reports, key=lambda one: (not one.has_trace, one.start_ns, one.rank))
    for each in in_order:
        fitting = (job for job in open_jobs if _belongs(each, job))
        job = next(fitting, None)
        if job is None:
            open_jobs.append([each])
        else:
            job.append(each)
    shown_first = [sorted(job, key=lambda one: (not one.has_trace, one.rank)) for job in open_jobs]
    return [job for job in shown_first if len(job) > 1]


def _belongs(one: RankReport, job: Sequence[RankReport]) -> bool:
    slack_ns = 0 if one.has_trace else _DUMP_SLACK_NS
    overlaps = any(
        one.start_ns - slack_ns < each.end_ns and each.start_ns < one.end_ns + slack_ns
        for each in job
    )
    sizes = {each.world_size for each in (one, job[0])}
    own = [each for each in job if each.rank == one.rank]
    if not one.has_trace and not one.end_ns:
        # A dump without calls has no time: it adds nothing to the trace of its rank.
        return len(sizes - {None}) < 2 and any(each.has_trace for each in own)  # noqa: PLR2004
    if one.has_trace:
        return len(sizes) == 1 and not own and overlaps
    return len(sizes - {None}) < 2 and overlaps and all(_may_be_one(one, each) for each in own)  # noqa: PLR2004  (they agree)


def _may_be_one(dump: RankReport, other: RankReport) -> bool:
    """Whether a dump is of the same process as another recording of its rank."""
    pids = {(each.about.host, each.about.pid) for each in (*dump.flights, *other.flights)}
    if len(pids) == 1 and other.flights:
        return None not in pids.pop()
    is_at_once = dump.start_ns < other.end_ns and other.start_ns < dump.end_ns
    return other.has_trace and is_at_once


def job_report(job: Sequence[RankReport]) -> Report:
    """One report on the ranks of a job, with the findings of the rules over ranks.

    What is of one recording, such as steps and kernels, is that of the lowest rank.

    Args:
        job: By rank; dumps of the FlightRecorder besides the traces.

    Raises:
        InternalError: A rule crashed, and its choice is strict.
    """
    ctx = JobContext.of(job)
    shown, whole = ctx.ranks[0], ctx.ranks[0].report
    if shown.has_trace and len(ctx.ranks) == 1:
        return whole
    merged = _Merged.of(ctx)
    # All ranks of a context have one, or none.
    traced = [each for each in ctx.ranks if each.has_trace]
    seen = {each.rank for each in ctx.ranks}
    world_size = shown.world_size or 0
    listed = range(world_size if world_size <= _MAX_RANKS else 0)
    source = replace(
        whole.source,
        path=ctx.path,
        # Without a trace there may be memory.
        kind="ranks" if merged.n_ruled else "flight-recorder",
        n_events=merged.n_events,
        devices=merged.devices,
    )
    results = _checked(ctx)
    summaries = rank_summaries(ctx) if traced else ()
    over_ranks = {rule.INFO.id for rule in rules() if is_over_ranks(rule.INFO.needs)}
    skipped = (each for each in whole.unchecked if each.rule not in over_ranks)
    return replace(
        whole,
        source=source,
        findings=ranked((*merged.findings, *results.findings)),
        unchecked=(*skipped, *results.unchecked),
        health=ranked(merged.health),
        ranks=summaries,
        missing_ranks=tuple(rank for rank in listed if rank not in seen),
        collectives=collectives_summary(ctx) if traced else None,
        lanes=job_lanes(ctx) if traced else None,
    )


def _checked(ctx: JobContext) -> RuleResults:
    """Run the rules over ranks that were chosen."""
    choice = ctx.ranks[0].choice
    wanted = (
        rule
        for rule in rules()
        if is_over_ranks(rule.INFO.needs) and (choice.ids is None or rule.INFO.id in choice.ids)
    )
    thresholds = choice.thresholds
    return run_rules(ctx, wanted, thresholds, strict=choice.strict, on_stage=lambda *_: None)


@dataclass(frozen=True)
class _Merged:
    """What the reports on all ranks say together.

    Attributes:
        findings: Those of all ranks: each problem once, where it costs most, with its ranks.
        health: The same of what is wrong with the recordings.
        devices: The names of all devices.
        n_events: Number of events of all ranks.
        n_ruled: Number of reports with more than a dump of the FlightRecorder.
    """

    findings: list[Finding]
    health: list[Finding]
    devices: tuple[str, ...]
    n_events: int
    n_ruled: int

    @classmethod
    def of(cls, ctx: JobContext) -> "_Merged":
        """Go through the reports, of which one at a time is in memory."""
        findings, health = _Problems(), _Problems()
        devices: dict[str, None] = {}
        n_events = n_ruled = 0
        for number, each in enumerate(ctx.ranks):
            report = each.report
            n_events += report.source.n_events
            if each.has_trace:
                devices.update(dict.fromkeys(report.source.devices))
            if report.source.kind != "flight-recorder":
                n_ruled += 1
                findings.add(number, each.rank, report.findings)
                health.add(number, each.rank, report.health)
        return cls(findings.merged(ctx), health.merged(ctx), tuple(devices), n_events, n_ruled)


class _Problem(NamedTuple):
    """What makes findings of several ranks the same problem."""

    rule: str
    file: str | None
    line: int | None
    op: str | None


class _Problems:
    """The findings of all ranks by problem: those of the same rule and line are one."""

    def __init__(self) -> None:
        self._costliest: dict[_Problem, tuple[int, Finding]] = {}
        self._ranks: dict[_Problem, set[int]] = defaultdict(set)

    def add(self, number: int, rank: int, found: Iterable[Finding]) -> None:
        """Add the findings of a rank.

        Args:
            number: The rank's index.
        """
        for finding in found:
            where = finding.locations[0] if finding.locations else Location()
            key = _Problem(finding.rule, where.file, where.line, where.op)
            self._ranks[key].add(rank)
            before = self._costliest.get(key)
            if before is None or _cost(finding) > _cost(before[1]):
                self._costliest[key] = number, finding

    def merged(self, ctx: JobContext) -> list[Finding]:
        """Each problem once, with its ranks. A rule can say more of a finding with all ranks."""
        with_ranks = {rule.INFO.id: getattr(rule, "over_ranks", None) for rule in rules()}
        merged = []
        self._join_without_line()
        for key, (number, finding) in self._costliest.items():
            add = with_ranks.get(finding.rule)
            told = finding if add is None else add(ctx, number, finding)
            merged.append(replace(told, ranks=tuple(sorted(self._ranks[key]))))
        return merged

    def _join_without_line(self) -> None:
        """Join what some ranks have at an operator with what others have there at a line.

        Not all of them may have recorded stacks. Several lines with that operator leave it open.
        """
        by_op: dict[tuple[str, str], list[_Problem]] = defaultdict(list)
        for key in self._costliest:
            if key.op is not None and key.file is not None:
                by_op[key.rule, key.op].append(key)
        for key in [key for key in self._costliest if key.op is not None and key.file is None]:
            with_line = by_op[key.rule, key.op or ""]
            if len(with_line) == 1 and self._ranks[key].isdisjoint(self._ranks[with_line[0]]):
                del self._costliest[key]
                self._ranks[with_line[0]] |= self._ranks.pop(key)


def _cost(finding: Finding) -> tuple[int, int]:
    return finding.cost.ns or 0, finding.cost.bytes or 0
