"""Devices, kernels, operators, modules, copies, syncs and regions: tables that sort and search."""

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from profkit.model.device_summary import DEVICE_TIMES
from profkit.model.location import MODULE_LEVEL, numbered_line
from profkit.model.report import (
    FunctionSummary,
    KernelSummary,
    LineSummary,
    ModuleSummary,
    OpSummary,
    Report,
)
from profkit.names import short_kernel, short_path
from profkit.present.facts import busiest_kernels, busiest_ops
from profkit.present.labels import (
    categories_title,
    function_name,
    idle_explanation,
    sampled_title,
    table_title,
)
from profkit.present.modules import module_label
from profkit.present.recording_tables import find_kernel_extremes, find_module_times
from profkit.renderers.html._options import Options
from profkit.renderers.html._section import Section, fill
from profkit.renderers.html._table import TABLE_SCRIPT, SortableColumn, SortableTable, build_table

_CALLS = SortableColumn("Calls", "count", "n_calls", "in the whole recording")
_IN_TOTAL = "in the whole recording, outside of steps too"
_PER_STEP = "what begins in the time of the steps, divided by their number"


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
    )


def _build_tables(report: Report, options: Options) -> Iterator[SortableTable]:
    yield _build_devices(report)
    yield _build_idle(report)
    yield _build_categories(report)
    yield _build_modules(report)
    yield _build_kernels(report, options)
    yield _build_operators(report, options)
    yield _build_module_instances(options)
    yield _build_lines(report, options)
    yield _build_functions(report, options)
    yield _build_copies(report)
    yield _build_syncs(report)
    yield _build_sync_sites(report)
    yield _build_regions(report)


def _build_line_column(options: Options, about: str) -> SortableColumn:
    """Return a column of ``train.py:12``, ``lib/model.py:forward`` for a function, or nothing."""

    def place(item: FunctionSummary | KernelSummary | LineSummary | OpSummary) -> str:
        where = item.location
        if where is None or where.file is None:
            return ""
        # Files of libraries are outside of the base: their whole paths would widen the table.
        path = short_path(where.file, options.base)
        file = posixpath.basename(path) if path.startswith("/") else path
        by_function = where.precision == "function" and where.function != MODULE_LEVEL
        return f"{file}:{where.function}" if by_function else numbered_line(file, where.line)

    return SortableColumn("Line", "place", place, about)


def _build_devices(report: Report) -> SortableTable:
    occupancy = (
        "of the warps that the device can hold, while kernels with an estimate ran: the profiler's "
        "estimate from launches, not measured"
    )

    columns = (
        SortableColumn("Device", "name", "device"),
        SortableColumn("Name", "text", "name"),
        SortableColumn(
            "Span", "ns", "span_ns", "from the start of its first work to the end of its last"
        ),
        SortableColumn("Busy", "ns", "busy_ns", "a kernel, copy or fill ran"),
        SortableColumn("Idle", "ns", "idle_ns", "the rest of the span"),
        SortableColumn("Compute", "ns", "compute_ns", DEVICE_TIMES["Compute"]),
        SortableColumn("Communication", "ns", "communication_ns", DEVICE_TIMES["Communication"]),
        SortableColumn("Overlap", "ns", "overlap_ns", DEVICE_TIMES["Overlap"]),
        SortableColumn("Copying", "ns", "memcpy_ns", DEVICE_TIMES["Copying"]),
        SortableColumn("Kernels", "count", "n_kernels"),
        SortableColumn("Copies", "count", "n_memcpy"),
        SortableColumn("Fills", "count", "n_memset"),
        SortableColumn("Occupancy", "share", "occupancy_share", occupancy),
        SortableColumn(
            "Tensor cores", "share", "tensor_core_share",
            "of kernel time, recognized by kernel names: a lower bound",
        ),
    )  # fmt: skip

    return build_table("devices", "Devices", columns, report.summary.devices)


def _build_idle(report: Report) -> SortableTable:
    columns = (
        SortableColumn("Device", "name", lambda row: row[0].device),
        SortableColumn(
            "Cause", "text", lambda row: idle_explanation(f"idle-{row[1].cause}"),
            "what the host did meanwhile",
        ),
        SortableColumn("Idle", "ns", lambda row: row[1].ns),
        SortableColumn(
            "Share", "share", lambda row: row[1].ns / row[0].span_ns if row[0].span_ns else None,
            "of the device's span",
        ),
    )  # fmt: skip

    rows = ((device, idle) for device in report.summary.devices for idle in device.idle_causes)
    return build_table("idle", "Idle time of devices", columns, rows, word="idle time")


def _build_categories(report: Report) -> SortableTable:
    columns = (
        SortableColumn("Category", "name", "kind"),
        SortableColumn("Per step", "ns", "per_step_ns", _PER_STEP),
        SortableColumn("Total", "ns", "total_ns", "sum of the lengths of all its calls"),
        _CALLS,
        SortableColumn("Share", "share", "share", "of all categories"),
        SortableColumn(
            "Elementwise", "ns", "elementwise_ns",
            "in elementwise kernels, casts and copies of elements among them",
        ),
    )  # fmt: skip

    title, rows = categories_title(report), report.summary.categories
    return build_table("categories", title, columns, rows, sorted_by="Total", word="category")


def _build_kernels(report: Report, options: Options) -> SortableTable:
    per_step, kernels = busiest_kernels(report)
    # The report has means only: the shortest and longest calls need the recording.
    extremes: Mapping[str, tuple[int, int]] = {}
    if options.recording is not None:
        extremes = find_kernel_extremes(options.recording.context, kernels)

    occupancy = (
        "of the warps that the device can hold: the profiler's estimate from launches, not measured"
    )
    extreme_columns = (
        SortableColumn("Shortest", "ns", lambda e: extremes[e.name][0], "its shortest call"),
        SortableColumn("Longest", "ns", lambda e: extremes[e.name][1], "its longest call"),
    )
    columns = (
        SortableColumn("Kernel", "name", lambda e: short_kernel(e.name)),
        SortableColumn("Per step", "ns", "per_step_ns", _PER_STEP),
        SortableColumn("Total", "ns", "total_ns", "sum of the lengths of all its calls"),
        _CALLS,
        SortableColumn("Mean", "ns", "mean_ns", "mean length of a call"),
        *(extreme_columns if extremes else ()),
        SortableColumn("Share", "share", "share", "of the time of all kernels"),
        SortableColumn(
            "Blocks", "number", "blocks_per_sm",
            "per multiprocessor, on average; below 1 some had none",
        ),
        SortableColumn("Occupancy", "share", "occupancy_share", occupancy),
        SortableColumn(
            "Tensor cores", "text",
            lambda e: "yes" if e.tensor_cores else "no" if e.cuda_cores else None,
            "whether a matmul uses them, by its name; many names do not tell",
        ),
        *_build_throughput_columns(kernels),
        SortableColumn("Category", "text", "category", "the kind of most of its work"),
        SortableColumn("Operator", "name", "op", "the operator that launched most of its time"),
        SortableColumn("Module", "name", "module", "the nn.Module that launched most of its time"),
        _build_line_column(options, "the source line that launched most of its time"),
    )  # fmt: skip

    names = [kernel.name for kernel in kernels]
    return build_table(
        "kernels", table_title("Kernels", per_step=per_step), columns, kernels,
        sorted_by="Per step" if per_step else "Total", hints=names, word="kernel",
    )  # fmt: skip


def _build_throughput_columns(
    rows: Iterable[KernelSummary | LineSummary | ModuleSummary | OpSummary],
) -> Iterator[SortableColumn]:
    """Return the columns of computed FLOPs and moved bytes in which any row has a figure."""
    columns = (
        SortableColumn(
            "TFLOP/s", "number", _throughput_figure("tflops_per_s"),
            "floating-point operations, computed from the shapes of inputs",
        ),
        SortableColumn(
            "GB/s", "number", _throughput_figure("gb_per_s"),
            "each tensor in and out once, computed from the shapes of inputs",
        ),
        SortableColumn(
            "Of peak FLOPs", "share", _throughput_figure("flops_share"),
            "of what the device computes at most in this precision",
        ),
        SortableColumn(
            "Of bandwidth", "share", _throughput_figure("bandwidth_share"),
            "of that of the device's memory; above 1 caches served some",
        ),
    )  # fmt: skip

    listed = [*rows]
    return (column for column in columns if any(column.cell_of(row) is not None for row in listed))


def _throughput_figure(name: str) -> Callable[[Any], float | None]:
    """Return a function from a row to a figure of its throughput, None if that is unknown."""
    return lambda row: getattr(row.throughput, name, None)


def _build_operators(report: Report, options: Options) -> SortableTable:
    per_step, on_device, ops = busiest_ops(report)
    work = "device work that it launched itself"
    alone = "on the host, without the operators that it calls"
    with_callees = "on the host, with these"
    device = (
        SortableColumn("Device per step", "ns", "device_per_step_ns", f"{work}: {_PER_STEP}"),
        SortableColumn("Device in total", "ns", "device_ns", f"{work}, {_IN_TOTAL}"),
    )
    columns = (
        SortableColumn("Operator", "name", "name"),
        *(device[:1] if on_device else ()),
        SortableColumn("Self per step", "ns", "self_per_step_ns", f"{alone}: {_PER_STEP}"),
        SortableColumn("Host per step", "ns", "per_step_ns", f"{with_callees}: {_PER_STEP}"),
        *(device[1:] if on_device else ()),
        SortableColumn("Self in total", "ns", "self_ns", f"{alone}, {_IN_TOTAL}"),
        SortableColumn("Host in total", "ns", "total_ns", f"{with_callees}, {_IN_TOTAL}"),
        _CALLS,
        *_build_throughput_columns(ops),
        _build_line_column(options, "the source line with most of its time"),
    )

    return build_table(
        "operators", table_title("Operators", per_step=per_step), columns, ops,
        sorted_by=f"{'Device' if on_device else 'Self'} {'per step' if per_step else 'in total'}",
        word="operator",
    )  # fmt: skip


def _build_modules(report: Report) -> SortableTable:
    modules = report.summary.modules
    per_step = any(module.host_per_step_ns is not None for module in modules)

    on_device = "its backward pass included"
    on_host = "its calls, and the operators of its backward pass"
    alone = "without the modules that it calls"
    columns = (
        SortableColumn("Module", "name", module_label, "indented below the module that called it"),
        SortableColumn("Modules", "count", "n_modules", "layers of one structure are one row"),
        SortableColumn("Device per step", "ns", "device_per_step_ns", f"{on_device}: {_PER_STEP}"),
        SortableColumn("Self, device per step", "ns", "self_device_per_step_ns", alone),
        SortableColumn("Host per step", "ns", "host_per_step_ns", f"{on_host}: {_PER_STEP}"),
        SortableColumn("Self, host per step", "ns", "self_host_per_step_ns", alone),
        SortableColumn("Device in total", "ns", "device_ns", f"{on_device}, {_IN_TOTAL}"),
        SortableColumn("Self, device in total", "ns", "self_device_ns", alone),
        SortableColumn("Host in total", "ns", "host_ns", f"{on_host}, {_IN_TOTAL}"),
        SortableColumn("Self, host in total", "ns", "self_host_ns", alone),
        SortableColumn(
            "Share", "share", "share", "of all device work, or without devices of the recording"
        ),
        _CALLS,
        *_build_throughput_columns(modules),
    )  # fmt: skip

    title = table_title("Modules", per_step=per_step)
    return build_table("modules", title, columns, modules)


def _build_module_instances(options: Options) -> SortableTable:
    instances = () if options.recording is None else find_module_times(options.recording.context)
    on_device = any(instance.device_ns for instance in instances)

    about = "device work launched within it, not within the modules that it calls"
    device = SortableColumn("On the device", "ns", "device_ns", about)
    columns = (
        SortableColumn("Module", "name", "name"),
        SortableColumn("Called by", "name", "parent", "the module that called it first"),
        _CALLS,
        *((device,) if on_device else ()),
        SortableColumn("Total", "ns", "total_ns", "on the host, with all that it calls"),
        SortableColumn(
            "Operators", "count", "n_ops", "calls of operators, without those of inner modules"
        ),
        SortableColumn("Operator time", "ns", "op_ns", "host time of these operators"),
    )
    first = device.title if on_device else "Operator time"
    return build_table(
        "module_instances", "Module instances in total", columns, instances, sorted_by=first
    )


def _build_lines(report: Report, options: Options) -> SortableTable:
    lines = report.summary.lines
    on_device = any(line.device_ns is not None for line in lines)
    per_step = any(line.host_per_step_ns is not None for line in lines)

    work, on_host = "device work that they launched", "host time of these operators"
    columns = (
        _build_line_column(options, "with the operators of its backward pass"),
        SortableColumn("Device per step", "ns", "device_per_step_ns", f"{work}: {_PER_STEP}"),
        SortableColumn("Host per step", "ns", "host_per_step_ns", f"{on_host}: {_PER_STEP}"),
        SortableColumn("Device in total", "ns", "device_ns", f"{work}, {_IN_TOTAL}"),
        SortableColumn("Host in total", "ns", "host_ns", f"{on_host}, {_IN_TOTAL}"),
        SortableColumn("Operators", "count", "n_ops", "calls, nested ones included"),
        *_build_throughput_columns(lines),
    )

    # The lines are in the order of their totals.
    first = "Device in total" if on_device else "Host in total"
    title = table_title("Source lines", per_step=per_step)
    return build_table("lines", title, columns, lines, sorted_by=first, word="source line")


def _build_copies(report: Report) -> SortableTable:
    columns = (
        SortableColumn("Copy", "name", "kind"),
        SortableColumn("Per step", "ns", "per_step_ns", _PER_STEP),
        SortableColumn("Total", "ns", "total_ns", "sum of their lengths on the device"),
        SortableColumn("Copies", "count", "n_calls", "in the whole recording"),
        SortableColumn("Bytes", "bytes", "bytes", "bytes copied"),
    )
    copies = report.summary.copies
    return build_table("copies", "Copies", columns, copies, sorted_by="Total", word="copy")


def _build_syncs(report: Report) -> SortableTable:
    columns = (
        SortableColumn("Call", "name", "call"),
        SortableColumn("Per step", "ns", "per_step_ns", _PER_STEP),
        SortableColumn("Total", "ns", "total_ns", "host time in all these calls"),
        _CALLS,
    )
    return build_table("syncs", "Syncs", columns, report.summary.syncs, word="sync")


def _build_functions(report: Report, options: Options) -> SortableTable:
    columns = (
        SortableColumn("Function", "name", lambda e: e.callee or function_name(e)),
        _build_line_column(options, "the line that most of its samples were at"),
        SortableColumn("Most often in", "name", "library", "the library that it called"),
        SortableColumn("Samples", "count", "n_samples", "of threads that used a core"),
        SortableColumn("Share", "share", "share", "of the time that threads ran, or of the steps"),
    )

    sampled = report.summary.sampled
    functions = () if sampled is None else sampled.functions
    title = "Functions" if sampled is None else sampled_title(sampled)
    return build_table("functions", f"{title}, sampled", columns, functions, sorted_by="Share")


def _build_sync_sites(report: Report) -> SortableTable:
    columns = (
        SortableColumn("Line", "name", lambda e: e.location.place if e.location else ""),
        SortableColumn("Operation", "name", "operation"),
        _CALLS,
        SortableColumn("Allowed because", "name", "allowed_reason"),
    )
    sites = report.summary.sync_sites or ()
    return build_table(
        "sync_sites", "Syncs by source line", columns, sites, sorted_by="Calls", word="sync"
    )


def _build_regions(report: Report) -> SortableTable:
    columns = (
        SortableColumn("Region", "name", "name"),
        SortableColumn("Per step", "ns", "per_step_ns", _PER_STEP),
        SortableColumn("Total", "ns", "total_ns", "sum of their lengths on the host"),
        SortableColumn("Device in total", "ns", "device_ns", "device work launched within"),
        SortableColumn("Entries", "count", "n_calls", "in the whole recording"),
    )
    regions = report.summary.regions
    return build_table("regions", "Regions", columns, regions, sorted_by="Total", word="region")
