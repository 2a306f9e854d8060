"""The ranks of a job and the collectives between them, as tables that sort and search."""

from profkit.engine.wording import rank_list
from profkit.model.job import CollectiveGroup
from profkit.model.report import Report
from profkit.present.ranks import late_because
from profkit.renderers.html._table import SortableColumn, SortableTable, table


def ranks(report: Report) -> SortableTable:
    """The ranks; no rows in a report on one recording."""
    columns = (
        SortableColumn("Rank", "name", lambda each: str(each.rank)),
        SortableColumn("Step", "ns", "step_ns", "mean step time"),
        SortableColumn("Compute", "ns", "compute_ns", "per step, without collectives"),
        SortableColumn("Waiting for data", "ns", "data_wait_ns", "per step"),
        SortableColumn(
            "Waiting for ranks", "ns", "collective_wait_ns",
            "per step, in collectives until the last rank had started",
        ),
        SortableColumn("Transfer", "ns", "transfer_ns", "per step, the rest of collectives"),
        SortableColumn("Last in", "count", "n_last", "collectives that it was the last to start"),
        SortableColumn(
            "Late", "ns", "late_ns", "in these, after the median of the other ranks, in total"
        ),
        SortableColumn("Clock", "ns", "offset_ns", "what its clock shows more than the first"),
        SortableColumn("Clock error", "ns", "error_ns", "deviation of single ends from that"),
        SortableColumn("Host", "text", "host"),
        SortableColumn("File", "place", "file"),
    )  # fmt: skip
    return table("ranks", "Ranks", columns, report.ranks)


def collectives(report: Report) -> SortableTable:
    """Kinds of collectives by process group."""
    columns = (
        SortableColumn("Collective", "name", "kind"),
        SortableColumn("Group", "name", lambda each: each.group or each.description),
        SortableColumn("Ranks", "text", lambda each: rank_list(each.ranks)),
        SortableColumn("Number", "count", "n", "matched collectives"),
        SortableColumn("Waiting", "ns", "wait_ns", "of all ranks, until the last had started"),
        SortableColumn("Transfer", "ns", "transfer_ns", "from then to the end on all ranks"),
        SortableColumn(
            "Bus GB/s", "number",
            lambda each: None if each.bus_bytes_per_s is None else each.bus_bytes_per_s / 1e9,
            "bus bandwidth as nccl-tests defines it",
        ),
        SortableColumn("Mostly last", "text", _mostly_last),
    )  # fmt: skip
    every = report.collectives.groups if report.collectives is not None else ()
    return table("collectives", "Collectives", columns, every)


def _mostly_last(each: CollectiveGroup) -> str:
    return late_because(each.last[0]) if each.last else ""
