"""A report as tables, for formats with rows: names, columns with units, values."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from profkit.errors import UsageError
from profkit.model.finding import Finding
from profkit.model.location import Location
from profkit.model.memory_summary import AllocationSite
from profkit.model.report import Report
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
        """The unit that the name ends in."""
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


_FINDINGS: Final = (
    Column("number", "int"),
    *_columns("rule name severity confidence title message fix"),
    *_PLACE,
    *_columns("step", "n cost_ns cost_per_step_ns cost_bytes cost_per_step_bytes"),
    *_columns("cost_basis held_by recording"),
)
_STEPS: Final = _columns("name", "start_ns dur_ns gpu_busy_ns gpu_idle_ns data_wait_ns sync_ns")
_DEVICES: Final = _columns(
    "device name",
    "span_ns busy_ns idle_ns compute_ns communication_ns overlap_ns memcpy_ns n_kernels n_memcpy "
    "n_memset",
    "occupancy_share tensor_core_share",
)
_MEMORY_STEPS: Final = _columns(
    "",
    "step host_rss_bytes tensor_bytes graph_bytes allocated_bytes peak_bytes reserved_bytes "
    "worker_bytes",
)
_SITES: Final = (
    *_columns("device moment"),
    *_PLACE,
    *_columns("category size_class", "n bytes"),
)
_TIMELINE: Final = _columns("device", "entry time_us active_bytes reserved_bytes")


def table(report: Report, name: str, base: str = "") -> Table:
    """One of :data:`TABLES`, with paths relative to the folder ``base``.

    Raises:
        UsageError: There is no such table.
    """
    if name not in _MAKERS:
        raise UsageError(f"There is no table {name!r}.", f"The tables are {', '.join(TABLES)}.")
    columns, rows = _MAKERS[name]
    return Table(name, columns, tuple(rows(report, base)))


def _findings(report: Report, base: str) -> Iterator[tuple[Value, ...]]:
    """The findings, then faults of the recording, then skipped checks."""
    path = short_path(report.source.path, base)
    for number, finding in enumerate((*report.findings, *report.health), start=1):
        yield (number, *_finding(finding, base), path)
    for each in report.unchecked:
        values: dict[str, Value] = {
            "rule": each.rule, "severity": "unchecked", "message": each.reason, "fix": each.remedy,
            "recording": path,
        }  # fmt: skip
        yield tuple(values.get(column.name) for column in _FINDINGS)


def _finding(finding: Finding, base: str) -> tuple[Value, ...]:
    where = finding.locations[0] if finding.locations else Location()
    cost = finding.cost
    return (
        finding.rule,
        finding.name,
        finding.severity,
        finding.confidence,
        finding.title,
        finding.message,
        finding.fix,
        *_place(where, base),
        where.step,
        finding.n,
        cost.ns,
        cost.per_step_ns,
        cost.bytes,
        cost.per_step_bytes,
        cost.basis if cost.ns is not None or cost.bytes is not None else None,
        " and ".join("".join(chain) for chain in finding.holders) or None,
    )


def _place(where: Location | None, base: str) -> tuple[Value, ...]:
    if where is None:
        return (None,) * len(_PLACE)
    file = None if where.file is None else short_path(where.file, base)
    return (file, where.line, where.function, where.op, where.module)


def _fields(
    summaries: Iterable[object], columns: Iterable[Column]
) -> Iterator[tuple[Value, ...]]:
    """Rows of objects whose fields are named like the columns."""
    names = [column.name for column in columns]
    for summary in summaries:
        yield tuple(getattr(summary, name) for name in names)


def _plain(part: str, columns: tuple[Column, ...]) -> "_Maker":
    """A table of a part of the summary, of values alone."""

    def rows(report: Report, base: str) -> Iterator[tuple[Value, ...]]:  # noqa: ARG001  (as all makers have it)
        return _fields(getattr(report.summary, part), columns)

    return columns, rows


def _located(part: str, columns: tuple[Column, ...]) -> "_Maker":
    """The same, with the source line."""

    def rows(report: Report, base: str) -> Iterator[tuple[Value, ...]]:
        for summary in getattr(report.summary, part) or ():
            file, line, function, _, _ = _place(summary.location, base)
            yield (*next(_fields((summary,), columns)), file, line, function)

    return (*columns, *_PLACE[:3]), rows


def _idle(report: Report, base: str) -> Iterator[tuple[Value, ...]]:  # noqa: ARG001
    for device in report.summary.devices:
        for each in device.idle_causes:
            yield (device.device, each.cause, each.ns)


def _parts(report: Report, base: str) -> Iterator[tuple[Value, ...]]:  # noqa: ARG001
    for step in report.summary.steps:
        for part in step.parts:
            yield (step.name, part.kind, part.ns)


def _sites(report: Report, base: str) -> Iterator[tuple[Value, ...]]:
    memory = report.summary.memory
    for device in memory.devices if memory is not None else ():
        for moment, sites in (("peak", device.peak_sites), ("end", device.top_sites)):
            for site in sites:
                yield (device.device, moment, *_site(site, base))


def _site(site: AllocationSite, base: str) -> tuple[Value, ...]:
    where = _place(site.location, base)
    return (*where, site.category, site.size_class, site.n, site.bytes)


def _timeline(report: Report, base: str) -> Iterator[tuple[Value, ...]]:  # noqa: ARG001
    memory = report.summary.memory
    for device in memory.devices if memory is not None else ():
        for point in device.timeline:
            times = (point.entry, point.time_us)
            yield (device.device, *times, point.active_bytes, point.reserved_bytes)


def _memory_steps(report: Report, base: str) -> Iterator[tuple[Value, ...]]:  # noqa: ARG001
    memory = report.summary.memory
    return _fields(memory.steps if memory is not None else (), _MEMORY_STEPS)


_Maker = tuple[tuple[Column, ...], Callable[[Report, str], Iterator[tuple[Any, ...]]]]

_MAKERS: Final[dict[str, _Maker]] = {
    "findings": (_FINDINGS, _findings),
    "devices": _plain("devices", _DEVICES),
    "idle": (_columns("device cause", "ns"), _idle),
    "steps": _plain("steps", _STEPS),
    "step_parts": (_columns("step part", "ns"), _parts),
    "kernels": _located(
        "top_kernels", (*_columns("name", "n_calls total_ns mean_ns",
                                                  "share blocks_per_sm occupancy_share"),
                        *_columns("op module")),
    ),
    "operators": _located("top_ops", _columns("name", "n_calls total_ns self_ns device_ns")),
    "regions": _plain("regions", _columns("name", "n_calls total_ns device_ns")),
    "syncs": _plain("syncs", _columns("call", "n_calls total_ns")),
    "sync_sites": _located("sync_sites", _columns("operation allowed_reason", "n_calls")),
    "copies": _plain("copies", _columns("kind", "n_calls total_ns bytes")),
    "memory_sites": (_SITES, _sites),
    "memory_timeline": (_TIMELINE, _timeline),
    "memory_steps": (_MEMORY_STEPS, _memory_steps),
}  # fmt: skip

TABLES: Final = tuple(_MAKERS)
"""The names of all tables."""
