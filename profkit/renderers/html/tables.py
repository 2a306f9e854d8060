"""Devices, kernels, operators, modules, copies, syncs and regions: tables that sort and search."""

from collections.abc import Iterator

from profkit.engine.wording import counted
from profkit.model.report import Report
from profkit.present.recording_tables import find_kernel_extremes, find_module_times
from profkit.present.tables.columns import CALLS
from profkit.present.tables.definition import Column, Table
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
from profkit.renderers.html._table import TABLE_SCRIPT, SortableTable, build_report_table


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
        data={"tables": {table.id: table.data for table in tables}},
        figure=counted(len(tables), "table"),
    )


def _build_tables(report: Report, options: Options) -> Iterator[SortableTable]:
    for table in _define_tables(report, options):
        is_sampled = table.name == "functions"
        caption = f"{table.title}, sampled" if is_sampled else table.title
        yield build_report_table(table, options.base, caption=caption)


def _define_tables(report: Report, options: Options) -> Iterator[Table]:
    yield define_devices(report)
    yield define_idle(report)
    yield define_categories(report)
    yield define_modules(report)
    yield _define_kernels(report, options)
    yield define_operators(report)
    yield _define_module_instances(options)
    yield define_lines(report)
    yield define_functions(report)
    yield define_copies(report)
    yield define_syncs(report)
    yield define_sync_sites(report)
    yield define_regions(report)


def _define_kernels(report: Report, options: Options) -> Table:
    if options.recording is None:
        return define_kernels(report)
    kernels = report.summary.top_kernels
    return define_kernels(report, find_kernel_extremes(options.recording.context, kernels))


def _define_module_instances(options: Options) -> Table:
    instances = () if options.recording is None else find_module_times(options.recording.context)
    on_device = any(instance.device_ns for instance in instances)

    about = "device work launched within it, not within the modules that it calls"
    device = Column("ns", "device_ns", "on the device", about)
    columns = (
        Column("name", "name", "module"),
        Column("name", "parent", "called by", "the module that called it first"),
        CALLS,
        *((device,) if on_device else ()),
        Column("ns", "total_ns", "total", "on the host, with all that it calls"),
        Column("count", "n_ops", "operators", "calls of operators, without those of inner modules"),
        Column("ns", "op_ns", "operator time", "host time of these operators"),
    )
    return Table(
        "module_instances",
        "Module instances in total",
        columns,
        instances,
        sorted_by="on the device" if on_device else "operator time",
    )
