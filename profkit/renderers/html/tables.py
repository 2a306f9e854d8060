"""Devices, kernels, operators, modules, copies, syncs and regions: tables that sort and search."""

from collections.abc import Iterator

from profkit.engine.wording import counted
from profkit.model.report import Report
from profkit.present.recording_tables import define_module_instances, find_kernel_extremes
from profkit.present.tables.definition import Table
from profkit.present.tables.device_tables import (
    define_copies,
    define_devices,
    define_idle,
    define_sync_sites,
    define_syncs,
)
from profkit.present.tables.work_tables import (
    define_categories,
    define_functions,
    define_kernels,
    define_lines,
    define_modules,
    define_operators,
    define_regions,
)
from profkit.renderers.html._options import Options
from profkit.renderers.html._section import Section, fill
from profkit.renderers.html._table import TABLE_SCRIPT, SortableTable, build_table, table_data


def build_section(report: Report, options: Options) -> Section | None:
    """Return the tables that have rows, or None without any."""
    tables = [table for table in _build_tables(report, options) if table.rows]
    if not tables:
        return None
    return Section(
        id="tables",
        title="Tables",
        body=fill("tables.html.j2", tables=tables),
        scripts=(TABLE_SCRIPT,),
        data=table_data(*tables),
        figure=counted(len(tables), "table"),
    )


def _build_tables(report: Report, options: Options) -> Iterator[SortableTable]:
    for table in _define_tables(report, options):
        is_sampled = table.name == "functions"
        caption = f"{table.title}, sampled" if is_sampled else table.title
        yield build_table(table, options.base, caption=caption)


def _define_tables(report: Report, options: Options) -> Iterator[Table]:
    yield define_devices(report)
    yield define_idle(report)
    yield define_categories(report)
    yield define_modules(report)
    ctx = None if options.recording is None else options.recording.context
    kernels = report.summary.top_kernels
    yield define_kernels(report, None if ctx is None else find_kernel_extremes(ctx, kernels))
    yield define_operators(report)
    if ctx is not None:
        yield define_module_instances(ctx)
    yield define_lines(report)
    yield define_functions(report)
    yield define_copies(report)
    yield define_syncs(report)
    yield define_sync_sites(report)
    yield define_regions(report)
