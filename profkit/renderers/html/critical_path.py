"""The critical path of the steps: time by kind, by source line and name, and what blocks."""

from collections.abc import Iterator

from profkit.model.critical_path import BlockingCall, CriticalPathSummary, PathEntry, PathLine
from profkit.model.report import Report
from profkit.names import short_path
from profkit.present.critical_path import (
    entry_name,
    main_name,
    path_label,
    path_title,
    unexplained_text,
)
from profkit.renderers.html._options import Options
from profkit.renderers.html._section import Section, fill
from profkit.renderers.html._table import TABLE_SCRIPT, SortableColumn, SortableTable, build_table


def build_section(report: Report, options: Options) -> Section | None:
    """Return the tables, or None in a report without a critical path."""
    path = report.summary.critical_path
    if path is None:
        return None

    tables = [table for table in _build_tables(path, options) if table.rows]
    return Section(
        id="critical-path",
        title="Critical path",
        body=fill(
            "critical_path.html.j2",
            whole=path_title(path),
            unexplained=unexplained_text(path),
            has_timeline=options.recording is not None,
            tables=tables,
        ),
        scripts=(TABLE_SCRIPT,),
        data={"tables": {table.id: table.data for table in tables}},
    )


def _build_tables(path: CriticalPathSummary, options: Options) -> Iterator[SortableTable]:
    times = tuple(_build_time_columns(path))
    kind = SortableColumn("Kind", "text", lambda e: path_label(e.kind))
    line = SortableColumn(
        "Line", "place", lambda e: _line(e, options), "of device work that of its launch"
    )
    segments = SortableColumn("Segments", "count", "n_segments")
    yield build_table("path-kinds", "Time by kind", (kind, *times), path.parts, sorted_by="Share")

    names = (
        SortableColumn("Name", "name", lambda e: entry_name(e.kind, e.name)),
        kind, *times, segments, line,
        SortableColumn("Operator", "name", "location.op", "of device work that launched it"),
    )  # fmt: skip
    full = [entry.name for entry in path.entries]
    yield build_table(
        "path-names", "Costliest names", names, path.entries, sorted_by="Share", hints=full
    )

    lines = (
        line, kind, *times, segments,
        SortableColumn("Longest", "name", main_name, "the name with most of this time"),
        SortableColumn("Of the path", "share", "main_share", "the time of that name"),
    )  # fmt: skip
    with_file = [entry for entry in path.lines if entry.location.file is not None]
    yield build_table("path-lines", "Costliest lines", lines, with_file, sorted_by="Share")

    calls = (
        SortableColumn("Call", "name", "call"),
        SortableColumn("Calls", "count", "n_calls"),
        *times, line,
    )  # fmt: skip
    yield build_table(
        "path-blocking", "Calls that block the host while the path is on a device", calls,
        path.blocking, sorted_by="Share",
    )  # fmt: skip


def _build_time_columns(path: CriticalPathSummary) -> Iterator[SortableColumn]:
    if path.per_step_ns is not None:
        yield SortableColumn("Per step", "ns", "per_step_ns")
    yield SortableColumn("Total", "ns", "ns", "over all steps")
    yield SortableColumn("Share", "share", "share", "of the critical path")


def _line(item: PathEntry | PathLine | BlockingCall, options: Options) -> str:
    where = item.location
    if where.file is None:
        return ""
    path = short_path(where.file, options.base)
    return f"{path}:{where.function if where.precision == 'function' else where.line}"
