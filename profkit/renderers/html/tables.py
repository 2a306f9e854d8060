"""Devices, kernels, operators, modules, copies, syncs and regions: tables that sort and search."""

import posixpath
from collections.abc import Iterator

from profkit.model.location import Location
from profkit.model.report import Report
from profkit.names import short_kernel, short_path
from profkit.present.headline import busiest_ops, idle_explanation
from profkit.present.recording_tables import kernel_extremes, module_times
from profkit.renderers.html._options import Options
from profkit.renderers.html._section import Section, fill
from profkit.renderers.html._table import TABLE_SCRIPT, SortableColumn, SortableTable, table

_CALLS = SortableColumn("Calls", "count")


def section(report: Report, options: Options) -> Section | None:
    """The tables that have rows, or None where none has."""
    tables = [each for each in _tables(report, options) if each.rows]
    if not tables:
        return None
    return Section(
        id="tables",
        title="Tables",
        body=fill("tables.html.j2", tables=tables),
        scripts=(TABLE_SCRIPT,),
        data={"tables": {each.id: each.data for each in tables}},
    )


def _tables(report: Report, options: Options) -> Iterator[SortableTable]:
    yield _devices(report)
    yield _idle(report)
    yield _kernels(report, options)
    yield _operators(report, options)
    yield _modules(options)
    yield _copies(report)
    yield _syncs(report)
    yield _sync_sites(report)
    yield _regions(report)


def short_place(where: Location | None, options: Options) -> str:
    """``train.py:12``, ``lib/model.py:forward`` for a function, or nothing."""
    if where is None or where.file is None:
        return ""
    at = where.function if where.precision == "function" else where.line
    path = short_path(where.file, options.base)
    return f"{posixpath.basename(path) if path.startswith('/') else path}:{at}"


def _devices(report: Report) -> SortableTable:
    columns = (
        SortableColumn("Device", "name"),
        SortableColumn("Name", "text"),
        SortableColumn("Span", "ns", "from the start of its first work to the end of its last"),
        SortableColumn("Busy", "ns", "a kernel, copy or fill ran"),
        SortableColumn("Idle", "ns", "the rest of the span"),
        SortableColumn("Compute", "ns", "a kernel other than a collective ran"),
        SortableColumn("Communication", "ns", "a collective's kernel ran"),
        SortableColumn("Overlap", "ns", "compute and communication ran at the same time"),
        SortableColumn("Copying", "ns", "a copy ran"),
        SortableColumn("Kernels", "count"),
        SortableColumn("Copies", "count"),
        SortableColumn("Fills", "count"),
        SortableColumn(
            "Occupancy",
            "share",
            "of the warps that the device can hold, while kernels with an estimate ran: the "
            "profiler's estimate from launches, not measured",
        ),
        SortableColumn(
            "Tensor cores",
            "share",
            "of kernel time, recognized by kernel names: a lower bound",
        ),
    )
    rows = (
        (
            each.device, each.name, each.span_ns, each.busy_ns, each.idle_ns, each.compute_ns,
            each.communication_ns, each.overlap_ns, each.memcpy_ns, each.n_kernels, each.n_memcpy,
            each.n_memset, each.occupancy_share, each.tensor_core_share,
        )
        for each in report.summary.devices
    )  # fmt: skip
    return table("devices", "Devices", columns, rows)


def _idle(report: Report) -> SortableTable:
    columns = (
        SortableColumn("Device", "name"),
        SortableColumn("Cause", "text", "what the host did meanwhile"),
        SortableColumn("Idle", "ns"),
        SortableColumn("Share", "share", "of the device's span"),
    )
    rows = (
        (device.device, idle_explanation(f"idle-{idle.cause}"), idle.ns,
         idle.ns / device.span_ns if device.span_ns else None)
        for device in report.summary.devices
        for idle in device.idle_causes
    )  # fmt: skip
    return table("idle", "Idle time of devices", columns, rows, word="idle time")


def _kernels(report: Report, options: Options) -> SortableTable:
    kernels = report.summary.top_kernels
    extremes: tuple[tuple[int, int] | tuple[None, None], ...] = ((None, None),) * len(kernels)
    if options.recording is not None:
        extremes = kernel_extremes(options.recording.context, kernels)
    columns = (
        SortableColumn("Kernel", "name"),
        _CALLS,
        SortableColumn("Total", "ns", "sum of the lengths of its calls"),
        SortableColumn("Mean", "ns", "mean length of a call"),
        SortableColumn("Shortest", "ns", "its shortest call"),
        SortableColumn("Longest", "ns", "its longest call"),
        SortableColumn("Share", "share", "of the time of all kernels"),
        SortableColumn("Blocks", "number", "per multiprocessor, on average; below 1 some had none"),
        SortableColumn(
            "Occupancy",
            "share",
            "of the warps that the device can hold: the profiler's estimate from launches, not "
            "measured",
        ),
        SortableColumn("Tensor cores", "text", "recognized by name; many names do not tell"),
        SortableColumn("Operator", "name", "the operator that launched most of its time"),
        SortableColumn("Module", "name", "the nn.Module that launched most of its time"),
        SortableColumn("Line", "place", "the source line that launched most of its time"),
    )
    rows = (
        (
            short_kernel(kernel.name), kernel.n_calls, kernel.total_ns, kernel.mean_ns, *extreme,
            kernel.share, kernel.blocks_per_sm, kernel.occupancy_share,
            "yes" if kernel.tensor_cores else None, kernel.op, kernel.module,
            short_place(kernel.location, options),
        )
        for kernel, extreme in zip(kernels, extremes, strict=True)
    )  # fmt: skip
    names = [kernel.name for kernel in kernels]
    return table("kernels", "Kernels", columns, rows, sorted_by=2, hints=names, word="kernel")


def _operators(report: Report, options: Options) -> SortableTable:
    on_device, every = busiest_ops(report)
    device = SortableColumn("On the device", "ns", "device work that it launched itself")
    columns = (
        SortableColumn("Operator", "name"),
        _CALLS,
        *((device,) if on_device else ()),
        SortableColumn("Self", "ns", "on the host, without the operators that it calls"),
        SortableColumn("Total", "ns", "on the host, with all that it calls"),
        SortableColumn("Line", "place", "the source line with most of its time"),
    )
    rows = (
        (
            op.name, op.n_calls, *((op.device_ns,) if on_device else ()), op.self_ns, op.total_ns,
            short_place(op.location, options),
        )
        for op in every
    )  # fmt: skip
    return table("operators", "Operators", columns, rows, sorted_by=2, word="operator")


def _modules(options: Options) -> SortableTable:
    every = () if options.recording is None else module_times(options.recording.context)
    on_device = any(module.device_ns for module in every)
    device = SortableColumn("On the device", "ns", "device work launched within it, not within "
                            "the modules that it calls")  # fmt: skip
    columns = (
        SortableColumn("Module", "name"),
        SortableColumn("Called by", "name", "the module that called it first"),
        _CALLS,
        *((device,) if on_device else ()),
        SortableColumn("Total", "ns", "on the host, with all that it calls"),
        SortableColumn("Operators", "count", "calls of operators, without those of inner modules"),
        SortableColumn("Operator time", "ns", "host time of these operators"),
    )
    rows = [
        (
            module.name, module.parent, module.n_calls,
            *((module.device_ns,) if on_device else ()), module.total_ns, module.n_ops,
            module.op_ns,
        )
        for module in every
    ]  # fmt: skip
    return table("modules", "Modules", columns, rows, sorted_by=3 if on_device else 5)


def _copies(report: Report) -> SortableTable:
    columns = (
        SortableColumn("Copy", "name"),
        SortableColumn("Copies", "count"),
        SortableColumn("Total", "ns", "sum of their lengths on the device"),
        SortableColumn("Bytes", "bytes", "bytes copied"),
    )
    rows = ((each.kind, each.n_calls, each.total_ns, each.bytes) for each in report.summary.copies)
    return table("copies", "Copies", columns, rows, sorted_by=2, word="copy")


def _syncs(report: Report) -> SortableTable:
    columns = (
        SortableColumn("Call", "name"),
        _CALLS,
        SortableColumn("Total", "ns", "host time in these calls"),
    )
    rows = ((each.call, each.n_calls, each.total_ns) for each in report.summary.syncs)
    return table("syncs", "Syncs", columns, rows, word="sync")


def _sync_sites(report: Report) -> SortableTable:
    columns = (
        SortableColumn("Line", "name"),
        SortableColumn("Operation", "name"),
        _CALLS,
        SortableColumn("Allowed because", "name"),
    )
    rows = (
        (
            each.location.place if each.location else "", each.operation, each.n_calls,
            each.allowed_reason or "",
        )
        for each in report.summary.sync_sites or ()
    )  # fmt: skip
    return table("sync_sites", "Syncs by source line", columns, rows, sorted_by=2, word="sync")


def _regions(report: Report) -> SortableTable:
    columns = (
        SortableColumn("Region", "name"),
        SortableColumn("Entries", "count"),
        SortableColumn("Total", "ns", "sum of their lengths on the host"),
        SortableColumn("On the device", "ns", "device work launched within"),
    )
    rows = (
        (each.name, each.n_calls, each.total_ns, each.device_ns) for each in report.summary.regions
    )
    return table("regions", "Regions", columns, rows, sorted_by=2, word="region")
