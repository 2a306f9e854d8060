"""Merges the reports on the ranks of a job."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.engine.families.collectives.extra_time import list_place_times
from profkit.engine.figures.ranks import summarize_collectives, summarize_ranks
from profkit.engine.job_context import JobContext, RankReport, RuleChoice
from profkit.engine.needs import is_over_ranks
from profkit.engine.rank_lanes import build_job_lanes, split_rank_time
from profkit.engine.registry import rules
from profkit.engine.runner import RuleResults, ranked, run_rules
from profkit.index.ranks.activity import find_rank_activity
from profkit.index.ranks.calls import NO_CALLS, POINT_TO_POINT, find_collective_calls
from profkit.index.ranks.flight import PackedRecord
from profkit.model.finding import Finding
from profkit.model.flight_record import FlightRecord
from profkit.model.location import Location
from profkit.model.report import Report
from profkit.packed import Packed

_DUMP_SLACK_NS: Final = 3_600_000_000_000
"""How far apart the calls of ranks of which some are blocked may be: longer than timeouts are."""
_PIPELINE: Final = "pipeline-bubble"
_EXPOSED: Final = "exposed-communication"
_MAX_RANKS: Final = 1 << 20
"""A file that states more ranks is wrong."""


def build_rank_report(
    ctx: Context, report: Report, choice: RuleChoice | None = None
) -> RankReport | None:
    """Add the collectives of its trace or dump to a report; None if its rank is not known.

    Args:
        choice: The rules that are to run over the job; by default all.
    """
    trace, choice = ctx.trace, choice or RuleChoice()
    if not ctx.has_trace and ctx.flights:
        return _build_dump_report(ctx.flights, report, choice)

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
        packed_time=Packed(split_rank_time(ctx, report.summary.steps)),
        packed_activity=Packed(activity),
        packed_places=Packed(list_place_times(report)),
        packed_report=Packed(_drop_details(report)),
        whole=report,
        choice=choice,
        flights=tuple(map(PackedRecord.of, ctx.flights)),
    )


def _build_dump_report(
    flights: tuple[FlightRecord, ...], report: Report, choice: RuleChoice
) -> RankReport | None:
    """Build the report on dumps of a rank without a trace."""
    first = flights[0]
    if first.rank is None:
        return None

    times = [call.created_ns for dump in flights for call in dump.calls if call.created_ns]
    times += [dump.written_ns for dump in flights if dump.written_ns]
    # Of a pipeline on gloo a dump has no calls: its steps tell which trace it belongs to.
    times += [end_ns for dump in flights if dump.steps for end_ns in dump.steps.ends_ns]

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
        packed_report=Packed(_drop_details(report)),
        whole=report,
        choice=choice,
        flights=tuple(map(PackedRecord.of, flights)),
    )


def _drop_details(report: Report) -> Report:
    """Drop the figures that are shown of a job's lowest rank alone: this leaves a tenth."""
    with_spans = {rule.INFO.id for rule in rules() if hasattr(rule, "over_ranks")}

    def reduce_findings(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
        return tuple(
            replace(
                finding,
                spans=finding.spans if finding.rule in with_spans else (),
                change=None,
            )
            for finding in findings
        )

    summary = replace(
        report.summary,
        top_kernels=(),
        top_ops=(),
        modules=(),
        lines=(),
        regions=(),
        sync_sites=None,
        copies=(),
        memory=None,
        critical_path=None,
    )
    return replace(
        report,
        summary=summary,
        findings=reduce_findings(report.findings),
        health=reduce_findings(report.health),
        unchecked=(),
    )


def group_by_job(reports: Iterable[RankReport]) -> list[list[RankReport]]:
    """Group reports by job: with one number of ranks, each rank once, at the same time.

    A rank that was recorded several times has several windows, each in the job of the ranks that
    were recorded in it. Dumps of the FlightRecorder belong to the traces of the same time; dumps
    without traces are a job.

    Returns:
        The reports of each job with more than one, by rank, traces first.
    """
    open_jobs: list[list[RankReport]] = []

    # Traces first: they define the jobs to which dumps are added.
    in_order = sorted(
        reports, key=lambda report: (not report.has_trace, report.start_ns, report.rank)
    )
    for report in in_order:
        job = next((job for job in open_jobs if _is_in_job(report, job)), None)
        if job is None:
            open_jobs.append([report])
        else:
            job.append(report)

    shown_first = [
        sorted(job, key=lambda report: (not report.has_trace, report.rank)) for job in open_jobs
    ]
    return [job for job in shown_first if len(job) > 1]


def _is_in_job(report: RankReport, job: Sequence[RankReport]) -> bool:
    """Return whether a report is of a job that others have opened."""
    slack_ns = 0 if report.has_trace else _DUMP_SLACK_NS
    overlaps = any(
        report.start_ns - slack_ns < member.end_ns and member.start_ns < report.end_ns + slack_ns
        for member in job
    )
    sizes = {report.world_size, job[0].world_size}
    has_same_size = len(sizes - {None}) <= 1
    same_rank = [member for member in job if member.rank == report.rank]

    if not report.has_trace and not report.end_ns:
        # A dump without calls has no time: it adds nothing to the trace of its rank.
        return has_same_size and any(member.has_trace for member in same_rank)
    # Two traces of one rank belong to two jobs.
    if report.has_trace:
        return len(sizes) == 1 and not same_rank and overlaps
    is_same_process = all(_may_be_one(report, member) for member in same_rank)
    return has_same_size and overlaps and is_same_process


def _may_be_one(dump: RankReport, member: RankReport) -> bool:
    """Return whether a dump is of the same process as another recording of its rank."""
    pids = {(flight.about.host, flight.about.pid) for flight in (*dump.flights, *member.flights)}
    # Dumps name their process: one host and number is one process.
    if len(pids) == 1 and member.flights:
        return None not in pids.pop()
    is_at_once = dump.start_ns < member.end_ns and member.start_ns < dump.end_ns
    return member.has_trace and is_at_once


def merge_reports(job: Sequence[RankReport]) -> Report:
    """Merge the reports on the ranks of a job, with the findings of the rules over ranks.

    Figures of a single recording, such as its steps and kernels, are the lowest rank's.

    Args:
        job: By rank; dumps of the FlightRecorder besides the traces.

    Raises:
        InternalError: A rule crashed, and its choice is strict.
    """
    ctx = JobContext.of(job)
    shown, whole = ctx.ranks[0], ctx.ranks[0].report
    if shown.has_trace and len(ctx.ranks) == 1:
        # Its own figures are all there is, but dumps tell why the ranks of its job ended.
        return replace(whole, findings=ranked((*whole.findings, *_run_chosen_rules(ctx).findings)))

    merged = _Merged.of(ctx)
    # All ranks of a context have one, or none.
    traced = [report for report in ctx.ranks if report.has_trace]
    seen = {report.rank for report in ctx.ranks}

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

    results = _run_chosen_rules(ctx)
    summaries = summarize_ranks(ctx) if traced else ()
    over_ranks = {rule.INFO.id for rule in rules() if is_over_ranks(rule.INFO.needs)}
    skipped = (check for check in whole.unchecked if check.rule not in over_ranks)

    return replace(
        whole,
        source=source,
        findings=ranked((*_drop_explained(merged.findings, results), *results.findings)),
        unchecked=(*skipped, *results.unchecked),
        health=ranked(merged.health),
        ranks=summaries,
        missing_ranks=tuple(rank for rank in listed if rank not in seen),
        collectives=summarize_collectives(ctx) if traced else None,
        lanes=build_job_lanes(ctx) if traced else None,
    )


def _drop_explained(findings: Iterable[Finding], results: RuleResults) -> Iterator[Finding]:
    """Yield the findings on single ranks that no finding on the whole job explains.

    One rank sees its sends and receives wait for others; all together see that it is a pipeline.
    """
    is_pipeline = any(
        finding.name == _PIPELINE or finding.evidence.get("stage") is not None
        for finding in results.findings
    )
    for finding in findings:
        kinds = finding.evidence.get("kinds") if finding.name == _EXPOSED else None
        if not (is_pipeline and isinstance(kinds, list) and set(kinds) <= set(POINT_TO_POINT)):
            yield finding


def _run_chosen_rules(ctx: JobContext) -> RuleResults:
    """Run the chosen rules over ranks."""
    choice = ctx.ranks[0].choice
    chosen = (
        rule
        for rule in rules()
        if is_over_ranks(rule.INFO.needs) and (choice.ids is None or rule.INFO.id in choice.ids)
    )
    thresholds = choice.thresholds
    return run_rules(ctx, chosen, thresholds, strict=choice.strict, on_stage=lambda *_: None)


@dataclass(frozen=True)
class _Merged:
    """The reports on all ranks, merged.

    Attributes:
        findings: Each problem of any rank once, where it costs most, with its ranks.
        health: Each fault of the recordings once, with its ranks.
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
        """Merge the reports, of which one at a time is in memory."""
        findings, health = _Problems(), _Problems()
        devices: dict[str, None] = {}
        n_events = n_ruled = 0

        for number, rank_report in enumerate(ctx.ranks):
            report = rank_report.report
            n_events += report.source.n_events
            if rank_report.has_trace:
                devices.update(dict.fromkeys(report.source.devices))
            if report.source.kind != "flight-recorder":
                n_ruled += 1
                findings.add(number, rank_report.rank, report.findings)
                health.add(number, rank_report.rank, report.health)

        return cls(findings.merged(ctx), health.merged(ctx), tuple(devices), n_events, n_ruled)


class _Problem(NamedTuple):
    """What makes findings of several ranks the same problem."""

    rule: str
    file: str | None
    line: int | None
    op: str | None


class _Problems:
    """Findings of all ranks by problem: findings of one rule and line are one."""

    def __init__(self) -> None:
        self._costliest: dict[_Problem, tuple[int, Finding]] = {}
        self._ranks: dict[_Problem, set[int]] = defaultdict(set)

    def add(self, number: int, rank: int, findings: Iterable[Finding]) -> None:
        """Add the findings of a rank.

        Args:
            number: The rank's index.
        """
        for finding in findings:
            location = finding.locations[0] if finding.locations else Location()
            key = _Problem(finding.rule, location.file, location.line, location.op)
            self._ranks[key].add(rank)
            costliest = self._costliest.get(key)
            if costliest is None or finding.cost.ns_and_bytes > costliest[1].cost.ns_and_bytes:
                self._costliest[key] = number, finding

    def merged(self, ctx: JobContext) -> list[Finding]:
        """Return each problem once, with its ranks; a rule can say more if it knows all ranks."""
        with_ranks = {rule.INFO.id: getattr(rule, "over_ranks", None) for rule in rules()}
        merged = []
        self._join_without_line()

        for key, (number, finding) in self._costliest.items():
            complete = with_ranks.get(finding.rule)
            completed = finding if complete is None else complete(ctx, number, finding)
            merged.append(replace(completed, ranks=tuple(sorted(self._ranks[key]))))

        return merged

    def _join_without_line(self) -> None:
        """Join findings at an operator with findings of other ranks at the operator's line.

        Some ranks may not have recorded stacks. If several lines have the operator, nothing tells
        which of them it is.
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
