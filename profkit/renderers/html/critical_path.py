"""The critical path of the steps: time by kind, by source line and name, and what blocks."""

from collections.abc import Iterator

from profkit.model.report import Report
from profkit.present.critical_path import main_kinds, path_title, unexplained_text
from profkit.present.tables.path_tables import (
    define_blocking_calls,
    define_path_lines,
    define_path_names,
    define_path_parts,
)
from profkit.renderers.html._options import Options
from profkit.renderers.html._section import Section, fill
from profkit.renderers.html._table import TABLE_SCRIPT, SortableTable, build_table, table_data


def build_section(report: Report, options: Options) -> Section | None:
    """Return the tables, or None in a report without a critical path."""
    path = report.summary.critical_path
    if path is None:
        return None

    tables = [table for table in _build_tables(report, options) if table.rows]
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
        data=table_data(*tables),
        figure=main_kinds(path),
    )


def _build_tables(report: Report, options: Options) -> Iterator[SortableTable]:
    yield build_table(define_path_parts(report), id="path-kinds")
    names = define_path_names(report)
    yield build_table(names, options.base, id="path-names", with_folders=True)
    for table in (define_path_lines(report), define_blocking_calls(report)):
        yield build_table(table, options.base, with_folders=True)
