"""How the ranks of a job and the collectives between them are shown."""

import statistics
from collections.abc import Iterator
from typing import Final

from profkit.engine.wording import counted, rank_list
from profkit.model.job import (
    CollectivesSummary,
    Lateness,
)
from profkit.model.report import Report
from profkit.model.torch_names import RECORD_SHAPES
from profkit.names import short_path
from profkit.present.document import (
    Block,
    DocumentSection,
    ListBlock,
    ListItem,
    TableBlock,
    TableRow,
    one_line,
)
from profkit.present.renderer import ReadersOptions
from profkit.present.tables.rank_tables import (
    define_collective_sizes,
    define_collectives,
    define_ranks,
)
from profkit.present.tables.screen import lay_out_table
from profkit.units import format_count, format_ns, format_share

_WHY: Final[dict[Lateness, str]] = {
    "host": "its host is late",
    "data": "it waits for data",
    "compute": "it computes longer",
    "unknown": "",
}
_REASONS: Final = {
    "not-recorded": "of groups of which no other rank was recorded",
    "no-counterpart": "without a counterpart on another rank",
    "different": "of different kinds, types or sizes",
    "ends-apart": "that do not run or end together",
    "unknown-peer": (
        f"of send and receive without their other rank, which `{RECORD_SHAPES}` records"
    ),
}
_REMEDIES: Final = {
    "no-counterpart": ": record the same steps on all ranks",
    "unknown-peer": f": record sends and receives with `{RECORD_SHAPES}`",
}
_ENOUGH_MATCHED: Final = 0.8
"""With a lower share of matched calls, the rank that is mostly the last is not reported."""
_MOST: Final = 0.5
_UNEVEN: Final = 1.2
"""Ranks are uneven if the longest computation is this many times the median."""
_SLOWER: Final = 1.02
"""A smaller slowdown by unequal ranks is not in the headline."""
_STRAGGLING: Final = "straggling-rank"
_LATE_RANKS: Final = frozenset({_STRAGGLING, "uneven-ranks", "pipeline-bubble"})
_MAX_UNREAD: Final = 3


def describe_job(report: Report, *, is_explained: bool) -> Iterator[str]:
    """Yield sentences on a job, the most important first.

    Args:
        report: The report over its ranks.
        is_explained: Whether it has been said already what the ranks wait for.
    """
    collectives = report.collectives
    if collectives is None:
        return

    # Waits in a few matched calls do not show who delays the job.
    share = collectives.matched_share
    is_matched = share is None or share >= _ENOUGH_MATCHED
    if lacking := "; ".join(_list_lacking(report, collectives, is_matched=is_matched)):
        yield f"{lacking[0].upper()}{lacking[1:]}."

    # In a few recorded steps some rank is always the last: all steps tell whether that is chance.
    is_chance = collectives.n_run_steps is not None and not any(
        finding.name in _LATE_RANKS for finding in report.findings
    )
    if is_chance:
        return

    yield from _step_of_job(report, collectives)
    if is_matched and not is_explained:
        yield from _last_rank(report, collectives)


def _list_lacking(
    report: Report, collectives: CollectivesSummary, *, is_matched: bool
) -> Iterator[str]:
    """Yield what the recording of a job lacks: ranks, files, or calls that match."""
    if missing := report.missing_ranks:
        verb = "was" if len(missing) == 1 else "were"
        total = len(missing) + len(report.ranks)
        yield f"{len(missing)} of {total} ranks {verb} not recorded ({rank_list(missing)})"
    for lost in report.unread[:_MAX_UNREAD]:
        name = short_path(lost.file, report.source.path)
        why = lost.why.replace(lost.file, name)
        yield f"not read: {one_line(why if name in why else f'{name}: {why}').rstrip('.')}"
    if more := len(report.unread[_MAX_UNREAD:]):
        yield f"not read: {counted(more, 'other file')}"
    if collectives.matched_share is not None and not is_matched:
        yield _hardly_matched(collectives, collectives.matched_share)


def _last_rank(report: Report, collectives: CollectivesSummary) -> Iterator[str]:
    """Yield which rank is mostly the last; without one, which computes much longer than others."""
    worst = max(report.ranks, key=lambda rank: rank.late_ns)
    n = sum(group.n for group in collectives.groups)
    if not n or worst.n_last <= _MOST * n:
        yield from _uneven(report)
        return
    why = _WHY[_main_lateness(collectives, worst.rank)]
    late = format_ns(worst.late_ns // worst.n_last)
    yield (
        f"Rank {worst.rank} is the last in {format_count(worst.n_last)} of "
        f"{counted(n, 'collective')}, {late} after the others"
        f"{f', since {why}' if why else ''}."
    )


def _hardly_matched(collectives: CollectivesSummary, share: float) -> str:
    """Say that most waits are not known, and what to record instead."""
    main = max(collectives.unmatched, key=lambda calls: calls.n).reason
    remedy = _REMEDIES.get(main, "")
    return f"only {format_share(share)} of the calls of collectives could be matched{remedy}"


def _step_of_job(report: Report, collectives: CollectivesSummary) -> Iterator[str]:
    """Say how long a step of all ranks takes, and would take if they were equal.

    If a single rank is the cause, its finding has the time without its delay.
    """
    slowdown = collectives.slowdown
    is_of_one = any(finding.name == _STRAGGLING for finding in report.findings)
    if slowdown is None or slowdown.ratio < _SLOWER or is_of_one:
        return
    what = "a step of the job" if slowdown.n_steps else "the job"
    yield (
        f"With equal ranks and links {what} would take {format_ns(slowdown.ideal_ns)} instead of "
        f"{format_ns(slowdown.recorded_ns)}."
    )


def _uneven(report: Report) -> Iterator[str]:
    """Name the rank that computes much longer than the median."""
    times = [(rank.compute_ns or 0, rank.rank) for rank in report.ranks]
    longest_ns, number = max(times, key=lambda time: time[0])
    usual_ns = statistics.median(ns for ns, _ in times)
    # Times of ranks always differ a little: only a clear outlier is named.
    if usual_ns and longest_ns > _UNEVEN * usual_ns:
        per = " per step" if any(rank.steps_ns for rank in report.ranks) else ""
        yield (
            f"Rank {number} computes for {format_ns(longest_ns)}{per}, "
            f"{longest_ns / usual_ns:.2g} times the median of the ranks."
        )


def _main_lateness(collectives: CollectivesSummary, rank: int) -> Lateness:
    """Return why a rank is late in most of its late time."""
    late_ns: dict[Lateness, int] = {}
    for group in collectives.groups:
        for last in group.last:
            if last.rank == rank:
                late_ns[last.why] = late_ns.get(last.why, 0) + last.late_ns
    return max(late_ns, key=lambda why: late_ns[why], default="unknown")


def job_sections(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    """Yield the ranks, and the collectives between them."""
    if report.collectives is None:
        return
    yield _build_ranks(report, options)
    yield _build_collectives(report, report.collectives, options)
    sizes = define_collective_sizes(report)
    if options.verbose and sizes.items:
        columns, rows = lay_out_table(sizes, sizes.items)
        yield DocumentSection(sizes.title, (TableBlock(columns, tuple(map(TableRow, rows))),))


def _build_ranks(report: Report, options: ReadersOptions) -> DocumentSection:
    ranks = sorted(report.ranks, key=lambda rank: (-rank.late_ns, rank.rank))
    # The latest ranks are shown, in the order of their numbers.
    shown = ranks if options.verbose else ranks[: options.limit]
    shown = sorted(shown, key=lambda rank: rank.rank)

    table = define_ranks(report)
    columns, rows = lay_out_table(table, shown, options.base)
    n_shown = f"{len(shown)} of {len(ranks)}, the latest" if len(shown) < len(ranks) else ""
    note = f"Below are the times of rank {report.source.rank}."
    if not options.verbose:
        note = (
            f"`profkit analyze -v` shows the times of rank {report.source.rank} with its kernels."
        )
    table_block = TableBlock(columns, tuple(map(TableRow, rows)))
    return DocumentSection(table.title, (table_block, ListBlock((ListItem(note),))), n_shown)


def _build_collectives(
    report: Report, collectives: CollectivesSummary, options: ReadersOptions
) -> DocumentSection:
    blocks: list[Block] = []
    table = define_collectives(report)
    groups = table.for_people if options.verbose else table.for_people[: options.limit]
    if groups:
        columns, rows = lay_out_table(table, groups)
        blocks.append(TableBlock(columns, tuple(map(TableRow, rows))))
    blocks += [ListBlock((ListItem(text),)) for text in unmatched_texts(collectives)]

    matched = matched_text(collectives)
    figures = f"{matched}, means per call" if groups else matched
    return DocumentSection(table.title, tuple(blocks), figures)


def matched_text(collectives: CollectivesSummary) -> str:
    """Return ``98% matched``, or that there was nothing to match."""
    share = collectives.matched_share
    return "none of several ranks" if share is None else f"{format_share(share)} of calls matched"


def unmatched_texts(collectives: CollectivesSummary) -> list[str]:
    """List how many calls are not counted, by reason."""
    return [
        f"{counted(calls.n, 'call')} {_REASONS[calls.reason]}: not counted"
        for calls in collectives.unmatched
    ]
