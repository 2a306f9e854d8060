"""How the ranks of a job and the collectives between them are shown."""

import statistics
from collections.abc import Iterator
from typing import Final

from profkit.engine.wording import counted, rank_list
from profkit.index.ranks.calls import POINT_TO_POINT
from profkit.model.job import (
    CollectiveGroup,
    CollectivesSummary,
    Lateness,
    RankSummary,
)
from profkit.model.report import Report
from profkit.names import short_path
from profkit.present.document import (
    Block,
    DocumentSection,
    ListBlock,
    ListItem,
    TableBlock,
    TableRow,
    columns_of,
    one_line,
)
from profkit.present.renderer import ReadersOptions
from profkit.units import format_count, format_ns, format_number, format_share

_WHY: Final[dict[Lateness, str]] = {
    "host": "its host launches late",
    "data": "it waits for data",
    "compute": "its device computes longer",
    "unknown": "",
}
WHY_LATE: Final[dict[Lateness, str]] = {
    "host": "launches late", "data": "waits for data", "compute": "computes longer", "unknown": "",
}  # fmt: skip
"""Why a rank is the last, in tables."""
_REASONS: Final = {
    "not-recorded": "of groups of which no other rank was recorded",
    "no-counterpart": "without a counterpart on another rank",
    "different": "of different kinds, types or sizes",
    "ends-apart": "that do not run or end together",
    "unknown-peer": (
        "of send and receive without their other rank, which `record_shapes=True` records"
    ),
}
_REMEDIES: Final = {
    "no-counterpart": ": record the same steps on all ranks",
    "unknown-peer": ": record sends and receives with `record_shapes=True`",
}
_ENOUGH_MATCHED: Final = 0.8
"""The share of calls below which a rank that is the last in the others is no cause."""
_MOSTLY: Final = 0.5
_UNEVEN: Final = 1.2
"""The longest computation of a rank divided by the median from which ranks are called uneven."""
_SLOWER: Final = 1.02
"""The slowdown by unequal ranks from which it is in the headline."""
_STRAGGLING: Final = "straggling-rank"
_MAX_UNREAD: Final = 3
_N_OF_PAIR: Final = 2
"""A send and its receive."""


def job_headline(report: Report) -> Iterator[str]:
    """Sentences on a job: who makes the others wait, and which ranks are missing."""
    found = report.collectives
    if found is None:
        return
    yield from _step_of_job(report, found)
    worst = max(report.ranks, key=lambda each: each.late_ns)
    n = sum(each.n for each in found.groups)
    if found.matched_share is not None and found.matched_share < _ENOUGH_MATCHED:
        yield _hardly_matched(found, found.matched_share)
    elif n and worst.n_last > _MOSTLY * n:
        why = _WHY[_mostly(found, worst.rank)]
        late = format_ns(worst.late_ns // worst.n_last)
        yield (
            f"Rank {worst.rank} is the last in {format_count(worst.n_last)} of "
            f"{counted(n, 'collective')}, {late} after the others"
            f"{f', since {why}' if why else ''}."
        )
    else:
        yield from _uneven(report)
    if missing := report.missing_ranks:
        verb = "was" if len(missing) == 1 else "were"
        total = len(missing) + len(report.ranks)
        yield f"{len(missing)} of {total} ranks {verb} not recorded ({rank_list(missing)})."
    for lost in report.unread[:_MAX_UNREAD]:
        name = short_path(lost.file, report.source.path)
        why = lost.why.replace(lost.file, name)
        yield f"Not read: {one_line(why if name in why else f'{name}: {why}')}"
    if more := len(report.unread[_MAX_UNREAD:]):
        yield f"Not read: {counted(more, 'other file')}."


def _hardly_matched(found: CollectivesSummary, share: float) -> str:
    """That little is known of who waits for whom, and what to record instead."""
    main = max(found.unmatched, key=lambda each: each.n).reason
    remedy = _REMEDIES.get(main, "")
    return f"Only {format_share(share)} of the calls of collectives could be matched{remedy}."


def _step_of_job(report: Report, found: CollectivesSummary) -> Iterator[str]:
    """What a step of all ranks takes, and would take if they were equal.

    Where a single rank is the cause, its finding says what it would take without that.
    """
    slowdown = found.slowdown
    if slowdown is None:
        return
    what = "A step of the job" if slowdown.n_steps else "The job"
    equal = ""
    if slowdown.ratio >= _SLOWER and all(each.name != _STRAGGLING for each in report.findings):
        equal = f", {format_ns(slowdown.ideal_ns)} with equal ranks and links"
    yield f"{what} takes {format_ns(slowdown.recorded_ns)}{equal}."


def _uneven(report: Report) -> Iterator[str]:
    """The rank that computes much longer than the others do."""
    times = [(each.compute_ns or 0, each.rank) for each in report.ranks]
    longest_ns, rank = max(times, key=lambda each: each[0])
    usual_ns = statistics.median(ns for ns, _ in times)
    if usual_ns and longest_ns > _UNEVEN * usual_ns:
        per = " per step" if any(each.steps_ns for each in report.ranks) else ""
        yield (
            f"Rank {rank} computes for {format_ns(longest_ns)}{per}, "
            f"{longest_ns / usual_ns:.2g} times the median of the ranks."
        )


def _mostly(found: CollectivesSummary, rank: int) -> Lateness:
    """Why a rank is late in most of the time that it is."""
    late: dict[Lateness, int] = {}
    for group in found.groups:
        for last in group.last:
            if last.rank == rank:
                late[last.why] = late.get(last.why, 0) + last.late_ns
    return max(late, key=lambda why: late[why], default="unknown")


def group_name(each: CollectiveGroup) -> str:
    """The name of a process group, or what it is for where PyTorch has only numbered it."""
    is_named = each.group and not each.group.isdigit()
    return each.group if is_named else each.description or each.group


def mean_wait_ns(each: CollectiveGroup) -> int:
    """How long a call waits until the last rank has started, on average."""
    n_members = _N_OF_PAIR if each.kind in POINT_TO_POINT else len(each.ranks)
    return each.wait_ns // max(1, each.n * n_members)


def mean_transfer_ns(each: CollectiveGroup) -> int:
    """How long a collective transfers, on average."""
    return each.transfer_ns // max(1, each.n)


def often_last(each: CollectiveGroup) -> str:
    """``rank 2 in 8``, or nothing if none was last by more than the clocks' error."""
    return f"rank {each.last[0].rank} in {format_count(each.last[0].n)}" if each.last else ""


def why_last(each: CollectiveGroup) -> str:
    """``launches late``, or nothing where that is not known."""
    return WHY_LATE[each.last[0].why] if each.last else ""


def job_sections(report: Report, options: ReadersOptions) -> Iterator[DocumentSection]:
    """The ranks, and the collectives between them."""
    if report.collectives is None:
        return
    yield _ranks(report, options)
    yield _collectives(report.collectives, options)


def _ranks(report: Report, options: ReadersOptions) -> DocumentSection:
    every = sorted(report.ranks, key=lambda each: (-each.late_ns, each.rank))
    shown = every if options.verbose else every[: options.limit]
    shown = sorted(shown, key=lambda each: each.rank)
    hosts = {each.host for each in report.ranks}
    end = ("host",) if len(hosts) > 1 else ()
    columns = columns_of(
        "rank", ("step", "compute", "data", "waits", "transfer", "last in", "late by"), end
    )
    rows = tuple(TableRow(_rank(each)[: len(columns)]) for each in shown)
    of = f"{len(shown)} of {len(every)}, the latest" if len(shown) < len(every) else ""
    of_one = f"Below are the times of rank {report.source.rank}."
    if not options.verbose:
        of_one = f"--verbose shows the times of rank {report.source.rank} with its kernels."
    title = "Ranks, per step" if any(each.steps_ns for each in every) else "Ranks"
    return DocumentSection(title, (TableBlock(columns, rows), ListBlock((ListItem(of_one),))), of)


def _rank(each: RankSummary) -> tuple[str, ...]:
    def time(ns: int | None) -> str:
        return "" if ns is None else format_ns(ns)

    return (
        str(each.rank),
        time(each.step_ns),
        time(each.compute_ns),
        time(each.data_wait_ns),
        time(each.collective_wait_ns),
        time(each.transfer_ns),
        format_count(each.n_last),
        time(each.late_ns // each.n_last if each.n_last else 0),
        one_line(each.host or ""),
    )


def _collectives(found: CollectivesSummary, options: ReadersOptions) -> DocumentSection:
    blocks: list[Block] = []
    groups = found.groups if options.verbose else found.groups[: options.limit]
    speed = ("bus GB/s",) if any(each.bus_bytes_per_s is not None for each in groups) else ()
    if groups:
        columns = columns_of(
            "collective",
            ("n", "waiting", "transfer", *speed, "often last"),
            ("why", "ranks"),
        )
        rows = tuple(_group(each, with_speed=bool(speed)) for each in groups)
        blocks.append(TableBlock(columns, rows))
    blocks += [ListBlock((ListItem(text),)) for text in unmatched_texts(found)]
    of = f"{matched_text(found)}, means per call" if groups else matched_text(found)
    return DocumentSection("Collectives", tuple(blocks), of)


def matched_text(found: CollectivesSummary) -> str:
    """``98% matched``, or that there was nothing to match."""
    share = found.matched_share
    return "none of several ranks" if share is None else f"{format_share(share)} of calls matched"


def unmatched_texts(found: CollectivesSummary) -> list[str]:
    """How many calls are in no figure, by reason."""
    return [
        f"{counted(each.n, 'call')} {_REASONS[each.reason]}: in no figure"
        for each in found.unmatched
    ]


def _group(each: CollectiveGroup, *, with_speed: bool) -> TableRow:
    speed = each.bus_bytes_per_s
    known = ("" if speed is None else format_number(speed / 1e9),) if with_speed else ()
    return TableRow(
        (
            one_line(" · ".join(filter(None, (each.kind, group_name(each))))),
            format_count(each.n),
            format_ns(mean_wait_ns(each)),
            format_ns(mean_transfer_ns(each)),
            *known,
            often_last(each),
            why_last(each),
            f"ranks {rank_list(each.ranks)}",
        )
    )
