"""Puts the reports on the ranks of a job together."""

import contextlib
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.index.intervals import subtract, union
from profkit.index.ranks.calls import collective_calls
from profkit.index.ranks.delays import Delays, find_delays
from profkit.index.ranks.matching import Matches, RankCalls, Unmatched, match_collectives
from profkit.model.events import MISSING
from profkit.model.finding import Finding
from profkit.model.job import (
    CollectiveGroup,
    CollectivesSummary,
    LastRank,
    RankSummary,
    UnmatchedCalls,
    UnmatchedReason,
)
from profkit.model.report import Report

_REASONS: Final[dict[Unmatched, UnmatchedReason]] = {
    Unmatched.NOT_RECORDED: "not-recorded",
    Unmatched.NO_COUNTERPART: "no-counterpart",
    Unmatched.DIFFERENT: "different",
    Unmatched.ENDS_APART: "ends-apart",
}
_MAX_RANKS: Final = 1 << 20
"""A file that states more ranks is wrong."""
_COMPUTING: Final = ("compute", "operators", "backward", "optimizer")


@dataclass(frozen=True)
class RankReport:
    """The report on one rank, with its collectives.

    Attributes:
        path: Its recording.
        start_ns: Nanoseconds since 1970 of its first event.
        end_ns: The same of its last.
        world_size: Number of ranks of its job, or None.
    """

    path: str
    start_ns: int
    end_ns: int
    world_size: int | None
    calls: RankCalls
    report: Report


def rank_report(ctx: Context, report: Report) -> RankReport | None:
    """The report with the collectives of its trace; None if its rank is not known."""
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
        report,
    )


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
    """One report on the ranks of a job.

    What is of one recording, such as steps and kernels, is that of the lowest rank.

    Args:
        job: By rank.
    """
    matches = match_collectives([each.calls for each in job])
    delays = find_delays(matches)
    shown = job[0]
    seen = {each.calls.rank for each in job}
    world_size = shown.world_size or 0
    listed = range(world_size if world_size <= _MAX_RANKS else 0)
    source = replace(
        shown.report.source,
        path=_common_path([each.path for each in job]),
        kind="ranks",
        n_events=sum(each.report.source.n_events for each in job),
        devices=tuple(dict.fromkeys(name for each in job for name in each.report.source.devices)),
    )
    return replace(
        shown.report,
        source=source,
        findings=_merged(job, "findings"),
        health=_merged(job, "health"),
        ranks=_ranks(job, matches, delays),
        missing_ranks=tuple(rank for rank in listed if rank not in seen),
        collectives=_collectives(matches, delays),
    )


def _common_path(paths: list[str]) -> str:
    """The folder of some files, or the first of them where they have none in common."""
    with contextlib.suppress(ValueError):  # absolute and relative ones, or several drives
        return os.path.commonpath(paths) or paths[0]
    return paths[0]


def _merged(job: Sequence[RankReport], kind: str) -> tuple[Finding, ...]:
    """The findings of all ranks: each problem once, where it costs most, with its ranks.

    Those of the same rule and line are one problem. They stay in the order of the rank with the
    most of them.
    """
    by_problem: dict[object, list[tuple[int, int, Finding]]] = defaultdict(list)
    for each in job:
        for place, finding in enumerate(getattr(each.report, kind)):
            where = finding.locations[0] if finding.locations else None
            key = (finding.rule, where and (where.file, where.line, where.op))
            by_problem[key].append((place, each.calls.rank, finding))
    merged = []
    for found in by_problem.values():
        place = min(each[0] for each in found)
        finding = max((each[2] for each in found), key=_cost)
        ranks = tuple(sorted({rank for _, rank, _ in found}))
        merged.append((place, replace(finding, ranks=ranks)))
    return tuple(finding for _, finding in sorted(merged, key=lambda each: each[0]))


def _cost(finding: Finding) -> tuple[int, int]:
    return finding.cost.ns or 0, finding.cost.bytes or 0


def _ranks(job: Sequence[RankReport], matches: Matches, delays: Delays) -> tuple[RankSummary, ...]:
    calls, clocks = matches.calls, matches.clocks
    member = calls.member[matches.members]
    starts, ends = matches.start_ns[matches.members], matches.end_ns[matches.members]
    n = len(calls.ranks)
    late = delays.last[delays.is_certain]
    n_last = np.bincount(calls.member[late], minlength=n)
    late_ns = np.bincount(
        calls.member[late], weights=delays.delay_ns[delays.is_certain], minlength=n
    )
    found = []
    for number, each in enumerate(job):
        own = member == number
        begins, until = starts[own], ends[own]
        waiting = union(begins, begins + delays.wait_ns[own])
        moving = subtract(union(begins, until), waiting)
        breakdown, clock = each.report.summary.breakdown, int(calls.clock[number])
        parts = breakdown.parts if breakdown is not None else ()
        steps = each.report.summary.steps
        n_steps = max(len(steps), 1)
        computing = [part.mean_ns for part in parts if part.kind in _COMPUTING]
        found.append(
            RankSummary(
                rank=each.calls.rank,
                host=each.calls.host,
                file=each.path,
                steps_ns=tuple(step.time_ns for step in steps),
                step_ns=None if breakdown is None else breakdown.mean_ns,
                compute_ns=None if breakdown is None else sum(computing),
                data_wait_ns=sum(step.data_wait_ns for step in steps) // n_steps,
                collective_wait_ns=waiting.total_ns // n_steps,
                transfer_ns=moving.total_ns // n_steps,
                n_last=int(n_last[number]),
                late_ns=int(late_ns[number]),
                offset_ns=int(clocks.offset_ns[clock]),
                error_ns=int(clocks.error_ns[clock]),
            )
        )
    return tuple(found)


def _collectives(matches: Matches, delays: Delays) -> CollectivesSummary:
    reasons = Counter(matches.unmatched[matches.unmatched != 0].tolist())
    unmatched = [
        UnmatchedCalls(_REASONS[Unmatched(value)], n) for value, n in reasons.most_common()
    ]
    return CollectivesSummary(
        n=len(matches.first),
        matched_share=matches.matched_share,
        unmatched=tuple(unmatched),
        groups=tuple(_groups(matches, delays)),
    )


def _groups(matches: Matches, delays: Delays) -> list[CollectiveGroup]:
    calls = matches.calls
    if not len(matches.first):
        return []
    leader = matches.members[matches.first]
    sizes = np.diff(np.append(matches.first, len(matches.members)))
    collective = np.repeat(np.arange(len(sizes)), sizes)
    wait = np.bincount(collective, weights=delays.wait_ns)
    # A send and its receive are one.
    pair = calls.kinds.index("send") if "send" in calls.kinds else 0
    kinds = np.where(calls.peers[0][leader] == MISSING, calls.kind[leader], pair)
    keys = np.stack([calls.group[leader], kinds])
    distinct, number = np.unique(keys, axis=1, return_inverse=True)
    number = number.reshape(-1)
    found = []
    for own, (group, kind) in enumerate(distinct.T.tolist()):
        here = number == own
        members = np.unique(calls.member[matches.members[here[collective]]])
        transfer = delays.transfer_ns[here]
        sized = ~np.isnan(delays.bus_bytes[here]) & (transfer > 0)
        speed = None
        if sized.any():
            speed = round(delays.bus_bytes[here][sized].sum() / (transfer[sized].sum() / 1e9))
        found.append(
            CollectiveGroup(
                group=calls.groups[group].name,
                description=calls.groups[group].description,
                ranks=tuple(calls.ranks[i].rank for i in members.tolist()),
                kind=calls.kinds[kind],
                n=int(here.sum()),
                wait_ns=round(wait[here].sum()),
                transfer_ns=int(transfer.sum()),
                bus_bytes_per_s=speed,
                last=_last(matches, delays, np.flatnonzero(here & delays.is_certain)),
            )
        )
    return sorted(found, key=lambda each: (-each.wait_ns, each.group, each.kind, each.ranks))


def _last(
    matches: Matches, delays: Delays, collectives: "np.ndarray[tuple[int], np.dtype[np.intp]]"
) -> tuple[LastRank, ...]:
    """Which ranks were last in some collectives, and why."""
    calls = matches.calls
    late: dict[int, Counter[str]] = defaultdict(Counter)
    count: Counter[int] = Counter()
    for number in collectives.tolist():
        rank = calls.ranks[calls.member[delays.last[number]]].rank
        late[rank][delays.why[number]] += int(delays.delay_ns[number])
        count[rank] += 1
    return tuple(
        LastRank(rank, n, sum(late[rank].values()), late[rank].most_common(1)[0][0])  # type: ignore[arg-type]
        for rank, n in sorted(count.items(), key=lambda each: (-each[1], each[0]))
    )
