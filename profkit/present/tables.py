"""A report as tables, for formats with rows: names, columns with units, values."""

from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

from profkit.dataclass import dataclass
from profkit.errors import UsageError
from profkit.model.finding import SEVERITIES
from profkit.model.history import History
from profkit.model.location import Location
from profkit.model.report import Report, Throughput
from profkit.names import short_path

ColumnKind = Literal["text", "int", "float"]
Unit = Literal["", "ns", "us", "bytes", "share"]
Value = str | int | float | None


@dataclass(frozen=True)
class Column:
    """A column; its name ends in its unit if it has one, and any value may be None."""

    name: str
    kind: ColumnKind = "text"

    @property
    def unit(self) -> Unit:
        """Return the unit that the name ends in."""
        return _UNITS.get(self.name.rpartition("_")[2], "")


_UNITS: Final[dict[str, Unit]] = {
    "ns": "ns", "us": "us", "bytes": "bytes", "share": "share",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """A table, whose rows have a value for each column."""

    name: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]


_PLACE: Final = tuple(
    Column(name, "int" if name == "line" else "text")
    for name in ("file", "line", "function", "op", "module")
)


def _columns(texts: str = "", ints: str = "", floats: str = "") -> tuple[Column, ...]:
    return (
        *(Column(name) for name in texts.split()),
        *(Column(name, "int") for name in ints.split()),
        *(Column(name, "float") for name in floats.split()),
    )


_FINDING: Final = "rule name severity confidence title message fix"
_FINDINGS: Final = (
    Column("number", "int"),
    *_columns(_FINDING),
    *_PLACE,
    *_columns("step", "n cost_ns cost_per_step_ns cost_bytes cost_per_step_bytes"),
    *_columns("cost_basis held_by recording"),
)
_SITES: Final = (*_columns("device moment"), *_PLACE, *_columns("category size_class", "n bytes"))


def table(report: Report, name: str, base: str = "") -> Table:
    """Build one of :data:`TABLES`, with paths relative to the folder ``base``.

    Raises:
        UsageError: There is no such table.
    """
    if name not in _MAKERS:
        raise UsageError(f"There is no table {name!r}.", f"The tables are {', '.join(TABLES)}.")
    columns, rows = _MAKERS[name]
    return Table(name, columns, tuple(rows(report, base)))


def _values(item: object, names: str) -> tuple[Any, ...]:
    return tuple(getattr(item, name) for name in names.split())


def _place(where: Location | None, base: str) -> tuple[Value, ...]:
    if where is None:
        return (None,) * len(_PLACE)
    file = None if where.file is None else short_path(where.file, base)
    return (file, where.line, where.function, where.op, where.module)


def _list_findings(report: Report, base: str) -> "_Rows":
    """Yield the findings, then faults of the recording, then skipped checks."""
    path = short_path(report.source.path, base)
    for number, finding in enumerate((*report.findings, *report.health), start=1):
        # The first location is the main one.
        where = finding.locations[0] if finding.locations else Location()
        cost = finding.cost
        yield (
            number,
            *_values(finding, _FINDING),
            *_place(where, base),
            where.step,
            finding.n,
            *_values(cost, "ns per_step_ns bytes per_step_bytes"),
            cost.basis if cost.ns is not None or cost.bytes is not None else None,
            " and ".join("".join(chain) for chain in finding.holders) or None,
            path,
        )

    for check in report.unchecked:
        values: dict[str, Value] = {
            "rule": check.rule, "severity": "unchecked", "message": check.reason,
            "fix": check.remedy, "recording": path,
        }  # fmt: skip
        yield tuple(values.get(column.name) for column in _FINDINGS)


_THROUGHPUT: Final = "n_calls time_ns flops bytes flops_share bandwidth_share"
_TIMED: Final = _columns("", "n_timed timed_ns n_flops moved_bytes", "flops_share bandwidth_share")
"""Columns of :class:`~profkit.model.report.Throughput`, with a unit in each name."""


def _summary_table(
    part: str, *columns: Column, located: bool = False, timed: bool = False
) -> "_Maker":
    """Build the table of a part of the summary, whose fields are named like the columns.

    Args:
        located: Whether the source line is in further columns.
        timed: Whether the throughput is.
    """
    names = " ".join(column.name for column in columns)

    def rows(report: Report, base: str) -> "_Rows":
        for entry in getattr(report.summary, part) or ():
            place = _place(entry.location, base)[:3] if located else ()
            throughput = _throughput(entry.throughput) if timed else ()
            yield (*_values(entry, names), *throughput, *place)

    return (*columns, *(_TIMED if timed else ()), *(_PLACE[:3] if located else ())), rows


def _throughput(throughput: Throughput | None) -> tuple[Value, ...]:
    return (None,) * len(_TIMED) if throughput is None else _values(throughput, _THROUGHPUT)


_FLOPS: Final = "n_flops n_flops_per_step n_model_flops_per_step time_ns"
_FLOP_SHARES: Final = "utilization_share known_share model_utilization_share"


def _list_flops(report: Report, base: str) -> "_Rows":  # noqa: ARG001  (all tables have it)
    if report.summary.flops is not None:
        counts = "precision flops per_step_flops model_flops_per_step time_ns"
        yield _values(report.summary.flops, f"{counts} {_FLOP_SHARES}")


def _list_idle(report: Report, base: str) -> "_Rows":  # noqa: ARG001  (all tables have it)
    for device in report.summary.devices:
        for idle in device.idle_causes:
            yield (device.device, idle.cause, idle.ns)


def _list_critical_path(report: Report, base: str) -> "_Rows":
    path = report.summary.critical_path
    for entry in path.entries if path is not None else ():
        yield (*_values(entry, _PATH_ENTRY), *_place(entry.location, base))


def _list_functions(report: Report, base: str) -> "_Rows":
    sampled = report.summary.sampled
    for function in sampled.functions if sampled is not None else ():
        values = _values(function, "library n_samples time_ns share")
        yield (*values, *_place(function.location, base)[:3])


def _list_path_parts(report: Report, base: str) -> "_Rows":  # noqa: ARG001
    path = report.summary.critical_path
    for each in path.parts if path is not None else ():
        yield _values(each, _PATH_PART)


def _list_step_parts(report: Report, base: str) -> "_Rows":  # noqa: ARG001
    for step in report.summary.steps:
        for part in step.parts:
            yield (step.name, part.kind, part.ns)


_RANK: Final = "rank step_ns compute_ns data_wait_ns collective_wait_ns transfer_ns"
_RANK_LAST: Final = "n_last late_ns offset_ns error_ns"


def _list_ranks(report: Report, base: str) -> "_Rows":
    for rank in report.ranks:
        file = short_path(rank.file, base)
        yield (rank.host, file, *_values(rank, f"{_RANK} {_RANK_LAST}"))


def _list_collectives(report: Report, base: str) -> "_Rows":  # noqa: ARG001
    for group in report.collectives.groups if report.collectives is not None else ():
        # The rank that is most often the last comes first.
        last = group.last[0] if group.last else None
        ranks = " ".join(map(str, group.ranks))
        yield (
            *_values(group, "kind group description"),
            ranks,
            None if last is None else last.why,
            *_values(group, "n wait_ns transfer_ns bus_bytes_per_s"),
            *((None, None) if last is None else (last.rank, last.n)),
        )


def _list_memory_sites(report: Report, base: str) -> "_Rows":
    memory = report.summary.memory
    for device in memory.devices if memory is not None else ():
        for moment, sites in (("peak", device.peak_sites), ("end", device.top_sites)):
            for site in sites:
                values = _values(site, "category size_class n bytes")
                yield (device.device, moment, *_place(site.location, base), *values)


_TIMELINE: Final = "entry time_us active_bytes reserved_bytes"


def _list_memory_timeline(report: Report, base: str) -> "_Rows":  # noqa: ARG001
    memory = report.summary.memory
    for device in memory.devices if memory is not None else ():
        for point in device.timeline:
            yield (device.device, *_values(point, _TIMELINE))


_STEP_MEMORY: Final = (
    "step host_rss_bytes tensor_bytes graph_bytes allocated_bytes peak_bytes reserved_bytes "
    "worker_bytes"
)


def _list_memory_steps(report: Report, base: str) -> "_Rows":  # noqa: ARG001
    memory = report.summary.memory
    for step in memory.steps if memory is not None else ():
        yield _values(step, _STEP_MEMORY)


_PATH_PART: Final = "kind ns per_step_ns share"
_PATH_ENTRY: Final = "kind name ns per_step_ns n_segments share"
_Rows = Iterator[tuple[Any, ...]]
_Maker = tuple[tuple[Column, ...], Callable[[Report, str], _Rows]]

_MAKERS: Final[dict[str, _Maker]] = {
    "findings": (_FINDINGS, _list_findings),
    "devices": _summary_table(
        "devices",
        *_columns("device name", "span_ns busy_ns idle_ns compute_ns communication_ns overlap_ns"),
        *_columns("", "memcpy_ns n_kernels n_memcpy n_memset", "occupancy_share tensor_core_share"),
    ),
    "idle": (_columns("device cause", "ns"), _list_idle),
    "steps": _summary_table(
        "steps",
        *_columns("name", "start_ns dur_ns gpu_busy_ns gpu_idle_ns data_wait_ns sync_ns"),
        *_columns("", "device_start_ns device_dur_ns"),
    ),
    "step_parts": (_columns("step part", "ns"), _list_step_parts),
    "critical_path": (
        (*_columns("kind name", "ns per_step_ns n_segments", "share"), *_PLACE),
        _list_critical_path,
    ),
    "critical_path_parts": (_columns("kind", "ns per_step_ns", "share"), _list_path_parts),
    "kernels": _summary_table(
        "top_kernels",
        *_columns("name", "n_calls total_ns per_step_ns mean_ns"),
        *_columns("", "", "share blocks_per_sm occupancy_share"),
        *_columns("op module category matmul_units"),
        located=True,
        timed=True,
    ),
    "operators": _summary_table(
        "top_ops",
        *_columns("name", "n_calls total_ns self_ns device_ns"),
        *_columns("", "per_step_ns self_per_step_ns device_per_step_ns"),
        located=True,
        timed=True,
    ),
    "categories": _summary_table(
        "categories",
        *_columns("kind", "n_calls total_ns per_step_ns", "share"),
        *_columns("", "elementwise_ns"),
    ),
    "modules": _summary_table(
        "modules",
        *_columns("name", "n_modules depth n_calls host_ns self_host_ns device_ns self_device_ns"),
        *_columns("", "host_per_step_ns self_host_per_step_ns"),
        *_columns("", "device_per_step_ns self_device_per_step_ns"),
        *_columns("", "", "share"),
        timed=True,
    ),
    "lines": _summary_table(
        "lines",
        *_columns("", "n_ops host_ns device_ns host_per_step_ns device_per_step_ns"),
        located=True,
        timed=True,
    ),
    "functions": (
        (*_columns("library", "n_samples time_ns", "share"), *_PLACE[:3]),
        _list_functions,
    ),
    "flops": (_columns("precision", _FLOPS, _FLOP_SHARES), _list_flops),
    "ranks": (_columns("host file", f"{_RANK} {_RANK_LAST}"), _list_ranks),
    "collectives": (
        _columns(
            "kind group description ranks last_why",
            "n wait_ns transfer_ns n_bus_bytes_per_s last_rank n_last",
        ),
        _list_collectives,
    ),
    "regions": _summary_table(
        "regions", *_columns("name", "n_calls total_ns per_step_ns device_ns")
    ),
    "syncs": _summary_table("syncs", *_columns("call", "n_calls total_ns per_step_ns")),
    "sync_sites": _summary_table(
        "sync_sites", *_columns("operation allowed_reason", "n_calls"), located=True
    ),
    "copies": _summary_table("copies", *_columns("kind", "n_calls total_ns per_step_ns bytes")),
    "memory_sites": (_SITES, _list_memory_sites),
    "memory_timeline": (_columns("device", _TIMELINE), _list_memory_timeline),
    "memory_steps": (_columns("", _STEP_MEMORY), _list_memory_steps),
}

TABLES: Final = tuple(_MAKERS)
"""The names of all tables."""


def filled_tables(report: Report) -> tuple[str, ...]:
    """Return the names of a report's tables that have rows, and always ``findings``."""
    # Readers can rely on the table of findings, even if it is empty.
    return tuple(name for name in TABLES if name == "findings" or table(report, name).rows)


def build_history_table(history: History) -> Table:
    """Build a table with a row for entry commit, device and version of PyTorch."""
    units = {line.name: line.unit for line in history.lines}
    columns = (
        *_columns("program revision torch devices", "recorded_unix_ns n_recordings"),
        *(Column(_with_unit(name, unit), "int") for name, unit in units.items()),
        *_columns("", " ".join(f"n_{severity}" for severity in SEVERITIES)),
    )

    rows = []
    for entry in history.entries:
        known_figures = (entry.figures.get(name) for name in units)
        figures = [None if figure is None else figure.value for figure in known_figures]
        counts = [entry.n_findings.get(severity, 0) for severity in SEVERITIES]
        about = (entry.program, entry.revision, entry.torch, ", ".join(entry.devices))
        rows.append((*about, entry.recorded_unix_ns, len(entry.paths), *figures, *counts))
    return Table("history", columns, tuple(rows))


def _with_unit(name: str, unit: str) -> str:
    # Figures of time are named after milliseconds, and their values are in nanoseconds.
    return name if unit == "count" else f"{name.removesuffix('_ms')}_{unit}"
