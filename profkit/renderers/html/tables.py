"""Kernels, operators, copies, syncs and regions: tables that sort and search."""

import posixpath
from collections.abc import Iterator

from profkit.model.location import Location
from profkit.model.report import Report
from profkit.names import short_kernel, short_path
from profkit.present.headline import busiest_ops, idle_explanation
from profkit.renderers.html._options import Options
from profkit.renderers.html._section import Section, fill
from profkit.renderers.html._table import TABLE_SCRIPT, SortableColumn, SortableTable, table

_CALLS = SortableColumn("Calls", "count")


def section(report: Report, options: Options) -> Section | None:
    """Everything that was counted, or None where nothing was.

    Args:
        options: How paths are shown.
    """
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
    yield _copies(report)
    yield _syncs(report)
    yield _waits(report)
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
        SortableColumn("In use", "ns", "from the start of its first work to the end of its last"),
        SortableColumn("Busy", "ns", "a kernel, copy or fill ran"),
        SortableColumn("Idle", "ns", "the rest of that time"),
        SortableColumn("Compute", "ns", "a kernel ran that is no communication"),
        SortableColumn("Communication", "ns", "a communication kernel ran"),
        SortableColumn("Both", "ns", "compute and communication ran at once"),
        SortableColumn("Copies", "ns", "a copy ran"),
        SortableColumn("Kernels", "count"),
        SortableColumn("Copies made", "count"),
        SortableColumn("Fills", "count"),
        SortableColumn(
            "Occupancy",
            "share",
            "of the warps that it can hold, while kernels with an "
            "estimate ran: the profiler's estimate from launches, not measured",
        ),
        SortableColumn(
            "Tensor cores", "share", "of the time of its kernels, by their names: at least"
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
        SortableColumn("While", "text", "what the host did meanwhile"),
        SortableColumn("Idle", "ns"),
        SortableColumn("Share", "share", "of the time that the device was in use"),
    )
    rows = (
        (device.device, idle_explanation(f"idle-{idle.cause}"), idle.ns,
         idle.ns / device.span_ns if device.span_ns else None)
        for device in report.summary.devices
        for idle in device.idle_causes
    )  # fmt: skip
    return table("idle", "Idle time of devices", columns, rows, word="idle time")


def _kernels(report: Report, options: Options) -> SortableTable:
    columns = (
        SortableColumn("Kernel", "name"),
        _CALLS,
        SortableColumn("Total", "ns", "the sum of the lengths of its calls"),
        SortableColumn("Mean", "ns", "the mean length of a call"),
        SortableColumn("Share", "share", "of the time of all kernels"),
        SortableColumn(
            "Blocks", "number", "for each multiprocessor, on average; below 1 some had none"
        ),
        SortableColumn(
            "Occupancy",
            "share",
            "of the warps that the device can hold: estimated by the "
            "profiler from the launch, not measured",
        ),
        SortableColumn("Tensor cores", "text", "told by the name, and many names tell nothing"),
        SortableColumn("Operator", "name", "the operator that launched most of its time"),
        SortableColumn("Module", "name", "the nn.Module that did"),
        SortableColumn("Line", "place", "the line of your code that did"),
    )
    rows = (
        (
            short_kernel(kernel.name), kernel.n_calls, kernel.total_ns, kernel.mean_ns,
            kernel.share, kernel.blocks_per_sm, kernel.occupancy_share,
            "yes" if kernel.tensor_cores else None, kernel.op, kernel.module,
            short_place(kernel.location, options),
        )
        for kernel in report.summary.top_kernels
    )  # fmt: skip
    names = [kernel.name for kernel in report.summary.top_kernels]
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
        SortableColumn("Line", "place", "the line of your code with most of its time"),
    )
    rows = (
        (
            op.name, op.n_calls, *((op.device_ns,) if on_device else ()), op.self_ns, op.total_ns,
            short_place(op.location, options),
        )
        for op in every
    )  # fmt: skip
    return table("operators", "Operators", columns, rows, sorted_by=2, word="operator")


def _copies(report: Report) -> SortableTable:
    columns = (
        SortableColumn("Copy", "name"),
        SortableColumn("Copies", "count"),
        SortableColumn("Total", "ns", "the sum of their lengths on the device"),
        SortableColumn("Bytes", "bytes", "bytes moved"),
    )
    rows = ((each.kind, each.n_calls, each.total_ns, each.bytes) for each in report.summary.copies)
    return table("copies", "Copies", columns, rows, sorted_by=2, word="copy")


def _syncs(report: Report) -> SortableTable:
    columns = (
        SortableColumn("Call", "name"),
        _CALLS,
        SortableColumn("Total", "ns", "the time that the host was in it"),
    )
    rows = ((each.call, each.n_calls, each.total_ns) for each in report.summary.syncs)
    return table("syncs", "Syncs", columns, rows, word="sync")


def _waits(report: Report) -> SortableTable:
    columns = (
        SortableColumn("Line", "name"),
        SortableColumn("Operation", "name"),
        _CALLS,
        SortableColumn("Allowed because", "name"),
    )
    rows = (
        (
            each.location.place if each.location else "",
            each.operation,
            each.n_calls,
            each.allowed_reason or "",
        )
        for each in report.summary.sync_sites or ()
    )
    return table("sync_sites", "Host-device syncs by line", columns, rows, sorted_by=2, word="sync")


def _regions(report: Report) -> SortableTable:
    columns = (
        SortableColumn("Region", "name"),
        SortableColumn("Entries", "count"),
        SortableColumn("Total", "ns", "the sum of their lengths on the host"),
        SortableColumn("On the device", "ns", "device work launched within"),
    )
    rows = (
        (each.name, each.n_calls, each.total_ns, each.device_ns) for each in report.summary.regions
    )
    return table("regions", "Regions", columns, rows, sorted_by=2, word="region")
