"""The figures of a report on the ranks of a job."""

import math
from collections import Counter, defaultdict
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from profkit.engine.job_context import JobContext
from profkit.index.distinct import distinct
from profkit.index.intervals import covered_within, subtract, union
from profkit.index.ranks.delays import Delays
from profkit.index.ranks.job_calls import NO_TEXT
from profkit.index.ranks.matching import Matches, Unmatched, number_rows
from profkit.model.events import MISSING, Float64s, Int64s, Rows
from profkit.model.job import (
    CollectiveGroup,
    CollectiveSize,
    CollectivesSummary,
    LastRank,
    RankSummary,
    UnmatchedCalls,
    UnmatchedReason,
)

_REASONS: Final[dict[Unmatched, UnmatchedReason]] = {
    Unmatched.NOT_RECORDED: "not-recorded",
    Unmatched.NO_COUNTERPART: "no-counterpart",
    Unmatched.DIFFERENT: "different",
    Unmatched.ENDS_APART: "ends-apart",
    Unmatched.UNKNOWN_PEER: "unknown-peer",
}
_MOST_SKEWS: Final = 0.95
_MAX_SIZES: Final = 50
"""Sizes of an all-to-all may differ each time."""
_COMPUTING: Final = ("compute", "operators", "backward", "optimizer")


def summarize_ranks(job: JobContext) -> tuple[RankSummary, ...]:
    """Compute the figures of each rank, ascending."""
    matches, delays = job.matches, job.delays
    calls, clocks = matches.calls, matches.clocks
    member = calls.member[matches.members]
    starts, ends = matches.start_ns[matches.members], matches.end_ns[matches.members]
    n = len(calls.ranks)

    by_rank = np.argsort(member, kind="stable")
    first = np.searchsorted(member[by_rank], np.arange(n + 1))

    late = delays.last[delays.is_certain]
    n_last = np.bincount(calls.member[late], minlength=n)
    late_ns = np.bincount(
        calls.member[late], weights=delays.delay_ns[delays.is_certain], minlength=n
    )

    summaries = []
    for number, report in enumerate(job.ranks):
        rank_calls = by_rank[first[number] : first[number + 1]]
        begins_ns, until_ns = starts[rank_calls], ends[rank_calls]
        waiting = union(begins_ns, begins_ns + delays.wait_ns[rank_calls])
        moving = subtract(union(begins_ns, until_ns), waiting)

        summary, time, clock = report.report.summary, report.time, int(calls.clock[number])
        breakdown, steps = summary.breakdown, summary.steps
        parts = breakdown.parts if breakdown is not None else ()
        n_steps = max(len(steps), 1)
        # Calls of other steps are not matched.
        n_common = len(job.common_steps(number)) or n_steps
        step_windows = time.steps if time is not None else ()

        windows = report.start_ns + np.array(step_windows, dtype=np.int64).reshape(-1, 2)
        clock_of_each = np.full(len(windows), clock, dtype=np.int32)
        bounds = tuple(clocks.corrected(clock_of_each, windows[:, i]) for i in range(2))

        # Collectives outside of the steps, such as a warm-up's, do not count.
        wait_ns, transfer_ns = (
            covered_within(times, *bounds) if len(windows) else np.array([times.total_ns])
            for times in (waiting, moving)
        )
        computing = [part.mean_ns for part in parts if part.kind in _COMPUTING]

        summaries.append(
            RankSummary(
                rank=report.rank,
                host=report.host,
                file=report.path,
                step_names=tuple(step.name for step in steps),
                steps_ns=tuple(step.time_ns for step in steps),
                steps_wait_ns=tuple(wait_ns.tolist()) if len(windows) else (),
                step_ns=None if breakdown is None else breakdown.mean_ns,
                compute_ns=None if breakdown is None else sum(computing),
                data_wait_ns=sum(step.data_wait_ns for step in steps) // n_steps,
                collective_wait_ns=int(wait_ns.sum()) // n_common,
                transfer_ns=int(transfer_ns.sum()) // n_common,
                n_last=int(n_last[number]),
                late_ns=int(late_ns[number]),
                offset_ns=int(clocks.offset_ns[clock]),
                error_ns=int(clocks.error_ns[clock]),
            )
        )

    return tuple(summaries)


def summarize_collectives(job: JobContext) -> CollectivesSummary:
    """Summarize the collectives between the ranks."""
    matches, delays, run = job.matches, job.delays, job.run_lateness
    reasons = Counter(matches.unmatched[matches.unmatched != 0].tolist())
    unmatched = [
        UnmatchedCalls(_REASONS[Unmatched(value)], n) for value, n in reasons.most_common()
    ]

    return CollectivesSummary(
        n=len(matches.first),
        matched_share=matches.matched_share,
        unmatched=tuple(unmatched),
        groups=tuple(_summarize_groups(matches, delays)),
        slowdown=job.what_if.summarize(max(job.core_wait_shares)),
        n_run_steps=None if run is None else len(run.steps),
    )


def _summarize_groups(matches: Matches, delays: Delays) -> list[CollectiveGroup]:
    calls = matches.calls
    if not len(matches.first):
        return []

    leader = matches.members[matches.first]
    collective = np.repeat(np.arange(len(leader)), matches.sizes)
    wait = np.bincount(collective, weights=delays.wait_ns)
    # A send and its receive are one collective.
    pair = calls.kinds.index("send") if "send" in calls.kinds else 0

    kinds = np.where(calls.peers[0][leader] == MISSING, calls.kind[leader], pair)
    groups = []
    for members in _divide([calls.group[leader], kinds]):
        group = calls.groups[calls.group[leader[members[0]]]]

        group_ranks = distinct(calls.member[matches.calls_of(members)])
        hosts = {calls.ranks[i].host for i in group_ranks.tolist()}
        groups.append(
            CollectiveGroup(
                group=group.name,
                description=group.description,
                ranks=tuple(calls.ranks[i].rank for i in group_ranks.tolist()),
                kind=calls.kinds[kinds[members[0]]],
                n=len(members),
                wait_ns=round(wait[members].sum()),
                transfer_ns=int(delays.transfer_ns[members].sum()),
                bus_bytes_per_s=_rate(delays.bus_bytes[members], delays.transfer_ns[members]),
                last=_last(matches, delays, members[delays.is_certain[members]]),
                n_hosts=None if None in hosts else len(hosts),
                sizes=_summarize_sizes(matches, delays, members),
            )
        )
    return sorted(groups, key=lambda row: (-row.wait_ns, row.group, row.kind, row.ranks))


def _summarize_sizes(
    matches: Matches, delays: Delays, collectives: Rows
) -> tuple[CollectiveSize, ...]:
    """Summarize some collectives by type and size."""
    calls = matches.calls
    element_type = calls.element_type[delays.last[collectives]]
    message_bytes = delays.message_bytes[collectives]

    sizes = []
    for places in _divide([element_type, np.nan_to_num(message_bytes, nan=-1.0)]):
        members = collectives[places]
        skews_ns = np.sort(delays.skew_ns[members])
        transfers_ns = delays.transfer_ns[members]
        n, n_bytes = len(members), message_bytes[places[0]]
        type_number = int(element_type[places[0]])

        sizes.append(
            CollectiveSize(
                element_type="" if type_number == NO_TEXT else calls.element_types[type_number],
                message_bytes=None if np.isnan(n_bytes) else int(n_bytes),
                n=n,
                mean_skew_ns=round(skews_ns.mean()),
                median_skew_ns=int(skews_ns[(n - 1) // 2]),
                p95_skew_ns=int(skews_ns[math.ceil(_MOST_SKEWS * n) - 1]),
                transfer_ns=int(transfers_ns.sum()),
                algorithm_bytes_per_s=_rate(delays.message_bytes[members], transfers_ns),
                bus_bytes_per_s=_rate(delays.bus_bytes[members], transfers_ns),
            )
        )
    sizes.sort(key=lambda size: (-size.transfer_ns, size.element_type, size.message_bytes or 0))
    return tuple(sizes[:_MAX_SIZES])


def _divide(columns: list[npt.NDArray[Any]]) -> list[Rows]:
    """Divide rows by what they have in some columns; each part is in order."""
    number = number_rows(columns)
    order = np.argsort(number, kind="stable")
    begins = np.flatnonzero(np.diff(number[order], prepend=-1))
    return np.split(order, begins[1:])


def _rate(n_bytes: Float64s, times_ns: Int64s) -> int | None:
    """Compute bytes per second of those collectives whose size is known; None without any."""
    is_known = ~np.isnan(n_bytes) & (times_ns > 0)
    if not is_known.any():
        return None
    return round(float(n_bytes[is_known].sum()) / (float(times_ns[is_known].sum()) / 1e9))


def _last(
    matches: Matches, delays: Delays, collectives: "np.ndarray[tuple[int], np.dtype[np.intp]]"
) -> tuple[LastRank, ...]:
    """Return the ranks that were last in some collectives, and why."""
    calls = matches.calls
    late: dict[int, Counter[str]] = defaultdict(Counter)
    count: Counter[int] = Counter()
    for number in collectives.tolist():
        rank = calls.ranks[calls.member[delays.last[number]]].rank
        late[rank][delays.why[number]] += int(delays.delay_ns[number])
        count[rank] += 1

    return tuple(
        LastRank(rank, n, sum(late[rank].values()), late[rank].most_common(1)[0][0])  # type: ignore[arg-type]
        for rank, n in sorted(count.items(), key=lambda pair: (-pair[1], pair[0]))
    )
