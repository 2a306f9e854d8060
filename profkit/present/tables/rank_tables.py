"""The ranks of a job, and the collectives between them."""

from typing import Final, NamedTuple

from profkit.dataclass import replace
from profkit.engine.wording import rank_list
from profkit.index.ranks.calls import POINT_TO_POINT
from profkit.model.job import CollectiveGroup, CollectiveSize, LastRank, Lateness, RankSummary
from profkit.model.report import Report
from profkit.names import short_path
from profkit.present.tables.definition import Column, Table
from profkit.units import format_count

WHY_LATE: Final[dict[Lateness, str]] = {
    "host": "host is late", "data": "waits for data", "compute": "computes longer", "unknown": "",
}  # fmt: skip
"""Why a rank is the last, in tables."""
_GIGA: Final = 1e9
_N_OF_PAIR: Final = 2
"""A send and its receive."""


class _SizeRow(NamedTuple):
    """The collectives of one type and size, and the group that they are of."""

    group: CollectiveGroup
    size: CollectiveSize


def _giga(rate: float | None) -> float | None:
    """Return bytes per second in GB/s."""
    return None if rate is None else rate / _GIGA


def _mean_late_ns(rank: RankSummary) -> int:
    """Return how much later than the others a rank starts, where it is the last."""
    return rank.late_ns // rank.n_last if rank.n_last else 0


def _group_name(group: CollectiveGroup) -> str:
    """Return the name of a process group, or its purpose if PyTorch has only numbered it."""
    is_named = group.group and not group.group.isdigit()
    return group.group if is_named else group.description or group.group


def _mean_wait_ns(group: CollectiveGroup) -> int:
    """Return how long a call waits until the last rank has started, on average."""
    # The waits of all members of a call are summed.
    n_members = _N_OF_PAIR if group.kind in POINT_TO_POINT else len(group.ranks)
    return group.wait_ns // max(1, group.n * n_members)


def _last(group: CollectiveGroup) -> LastRank | None:
    """Return the rank that is most often the last, which comes first."""
    return group.last[0] if group.last else None


def _often_last(group: CollectiveGroup) -> str:
    """Return ``rank 2 in 8``, or nothing if no rank was last by more than the clocks' error."""
    last = _last(group)
    return "" if last is None else f"rank {last.rank} in {format_count(last.n)}"


def _of_group(column: Column) -> Column:
    """Return a column of groups as one of their sizes."""
    return replace(column, value=lambda row: column.value_in(row.group))


_RANK_COLUMNS: Final = (
    Column("id", "rank", "rank"),
    Column("ns", "step_ns", "step", "mean step time"),
    Column("ns", "compute_ns", "compute", "per step, without collectives"),
    Column("ns", "data_wait_ns", "waiting for data", "per step", screen="data"),
    Column(
        "ns", "collective_wait_ns", "waiting for ranks",
        "per step, in collectives until the last rank had started", screen="waits",
    ),
    Column("ns", "transfer_ns", "transfer", "per step, the rest of collectives"),
    Column("count", "n_last", "last in", "collectives that it was the last to start"),
    Column(
        "ns", "late_ns", "late", "in these, after the median of the other ranks, in total",
        screen="",
    ),
    Column("ns", screen="late by", value=_mean_late_ns),
    Column("ns", "offset_ns", "clock", "what its clock shows more than the first", screen=""),
    Column("ns", "error_ns", "clock error", "deviation of single ends from that", screen=""),
    Column("text", "host", "host", screen=""),
    Column("file", "file"),
)  # fmt: skip
_NAMES_OF_GROUP: Final = (
    Column(
        "text", screen="collective",
        value=lambda group: " · ".join(filter(None, (group.kind, _group_name(group)))),
    ),
    Column("name", "kind", "collective", screen=""),
    Column("text", "group"),
    Column("name", "", "group", screen="", value=_group_name),
    Column("text", "description"),
    Column("text", "ranks", value=lambda group: " ".join(map(str, group.ranks))),
    Column("text", "", "ranks", screen="", value=lambda group: rank_list(group.ranks)),
)  # fmt: skip
_GROUP_COLUMNS: Final = (
    *_NAMES_OF_GROUP,
    Column("count", "n", "number", "matched collectives", screen="n"),
    Column("ns", "wait_ns"),
    Column(
        "ns", "", "waiting", "mean of all calls, until the last rank had started",
        value=_mean_wait_ns,
    ),
    Column("ns", "transfer_ns"),
    Column(
        "ns", "", "transfer", "mean, from then to the end on all",
        value=lambda group: group.transfer_ns // max(1, group.n),
    ),
    Column("count", "n_bus_bytes_per_s", value="bus_bytes_per_s"),
    Column(
        "number", "", "bus GB/s", "bus bandwidth as nccl-tests defines it",
        value=lambda group: _giga(group.bus_bytes_per_s),
    ),
    Column(
        "tally", "", "often last", "the rank that was last in most, and in how many",
        value=_often_last,
    ),
    Column("id", "last_rank", value=lambda group: getattr(_last(group), "rank", None)),
    Column("count", "n_last", value=lambda group: getattr(_last(group), "n", None)),
    Column(
        "ns", "", "late", "in these, after the median of the other ranks, in total", screen="",
        value=lambda group: getattr(_last(group), "late_ns", None),
    ),
    Column("text", "last_why", value=lambda group: getattr(_last(group), "why", None)),
    Column(
        "text", "", "why", value=lambda group: WHY_LATE[group.last[0].why] if group.last else ""
    ),
    Column("count", "n_hosts"),
    Column("text", screen="ranks", value=lambda group: f"ranks {rank_list(group.ranks)}"),
)  # fmt: skip
_SIZE_COLUMNS: Final = (
    *map(_of_group, _NAMES_OF_GROUP),
    Column("count", "n_hosts", value="group.n_hosts"),
    Column("name", "element_type", "type", value="size.element_type"),
    Column("bytes", "message_bytes", "size", value="size.message_bytes"),
    Column("count", "n", "number", "matched collectives", screen="n", value="size.n"),
    Column(
        "ns", "mean_skew_ns", "skew", "from the first rank's start to the last one's, mean",
        value="size.mean_skew_ns",
    ),
    Column("ns", "median_skew_ns", "median", "of the skew", value="size.median_skew_ns"),
    Column("ns", "p95_skew_ns", "p95", "of the skew", value="size.p95_skew_ns"),
    Column("ns", "transfer_ns", value="size.transfer_ns"),
    Column(
        "ns", "", "transfer", "mean, from the last rank's start to the end on all",
        value=lambda row: row.size.transfer_ns // max(1, row.size.n),
    ),
    Column("count", "n_algorithm_bytes_per_s", value="size.algorithm_bytes_per_s"),
    Column(
        "number", "", "algorithm GB/s", "size divided by transfer", screen="GB/s",
        value=lambda row: _giga(row.size.algorithm_bytes_per_s),
    ),
    Column("count", "n_bus_bytes_per_s", value="size.bus_bytes_per_s"),
    Column(
        "number", "", "bus GB/s", "bus bandwidth as nccl-tests defines it",
        value=lambda row: _giga(row.size.bus_bytes_per_s),
    ),
)  # fmt: skip


def define_ranks(report: Report) -> Table:
    """Define the table of ranks; most jobs have one clock, one host, or do not wait for data."""
    ranks = report.ranks
    # On one machine, the name of the host is the same in all rows.
    has_hosts = len({rank.host for rank in ranks}) > 1
    # On the page a column of zeros would take the room of one that says something.
    is_shown = {
        "waiting for data": any(rank.data_wait_ns for rank in ranks),
        "clock": any(rank.offset_ns or rank.error_ns for rank in ranks),
        "clock error": any(rank.offset_ns or rank.error_ns for rank in ranks),
        "host": has_hosts,
    }
    columns = (
        *(
            replace(column, title=column.title if is_shown.get(column.title, True) else "")
            for column in _RANK_COLUMNS
        ),
        Column("text", screen="host" if has_hosts else "", value="host"),
        Column(
            "file",
            "",
            "file",
            screen="",
            value=lambda rank: short_path(rank.file, report.source.path),
        ),
    )

    title = "Ranks, per step" if any(rank.steps_ns for rank in ranks) else "Ranks"
    return Table(
        "ranks",
        title,
        columns,
        ranks,
        exported="host file rank step_ns compute_ns data_wait_ns collective_wait_ns transfer_ns "
        "n_last late_ns offset_ns error_ns",
    )


def define_collectives(report: Report) -> Table:
    """Define the table of the collectives of each kind and group."""
    groups = () if report.collectives is None else report.collectives.groups
    return Table(
        "collectives",
        "Collectives",
        _GROUP_COLUMNS,
        groups,
        exported="kind group description ranks last_why n wait_ns transfer_ns n_bus_bytes_per_s "
        "last_rank n_last",
    )


def define_collective_sizes(report: Report) -> Table:
    """Define the table of the collectives of each kind, group, type and size."""
    groups = () if report.collectives is None else report.collectives.groups
    rows = [_SizeRow(group, size) for group in groups for size in group.sizes]
    rows.sort(key=lambda row: -row.size.transfer_ns)
    return Table("collective_sizes", "Collectives by size", _SIZE_COLUMNS, tuple(rows))
