"""Kernels, operators, copies, syncs and regions: tables that sort and search."""

import posixpath
from collections.abc import Iterator

from profkit.engine.verdict import busiest_ops, meanwhile
from profkit.model.report import Report
from profkit.model.where import Location
from profkit.names import short_kernel, short_path
from profkit.render.html._options import Options
from profkit.render.html._section import Section, fill
from profkit.render.html._table import TABLE_SCRIPT, Column, Table, table

_CALLS = Column("Calls", "count")


def section(report: Report, options: Options) -> Section | None:
    """Everything that was counted, or None where nothing was.

    Args:
        report: The report.
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


def _tables(report: Report, options: Options) -> Iterator[Table]:
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


def _devices(report: Report) -> Table:
    columns = (
        Column("Device", "name"),
        Column("Name", "text"),
        Column("In use", "ns", "from the start of its first work to the end of its last"),
        Column("Busy", "ns", "a kernel, copy or fill ran"),
        Column("Idle", "ns", "the rest of that time"),
        Column("Compute", "ns", "a kernel ran that is no communication"),
        Column("Communication", "ns", "a communication kernel ran"),
        Column("Both", "ns", "compute and communication ran at once"),
        Column("Copies", "ns", "a copy ran"),
        Column("Kernels", "count"),
        Column("Copies made", "count"),
        Column("Fills", "count"),
        Column(
            "Occupancy",
            "share",
            "of the warps that it can hold, while kernels with an "
            "estimate ran: the profiler's estimate from launches, not measured",
        ),
        Column("Tensor cores", "share", "of the time of its kernels, by their names: at least"),
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


def _idle(report: Report) -> Table:
    columns = (
        Column("Device", "name"),
        Column("While", "text", "what the host did meanwhile"),
        Column("Idle", "ns"),
        Column("Share", "share", "of the time that the device was in use"),
    )
    rows = (
        (device.device, meanwhile(f"idle-{idle.cause}"), idle.ns,
         idle.ns / device.span_ns if device.span_ns else None)
        for device in report.summary.devices
        for idle in device.idle_causes
    )  # fmt: skip
    return table("idle", "Idle time of devices", columns, rows, word="gap")


def _kernels(report: Report, options: Options) -> Table:
    columns = (
        Column("Kernel", "name"),
        _CALLS,
        Column("Total", "ns", "the sum of the lengths of its calls"),
        Column("Mean", "ns", "the mean length of a call"),
        Column("Share", "share", "of the time of all kernels"),
        Column("Blocks", "number", "for each multiprocessor, on average; below 1 some had none"),
        Column(
            "Occupancy",
            "share",
            "of the warps that the device can hold: estimated by the "
            "profiler from the launch, not measured",
        ),
        Column("Tensor cores", "text", "told by the name, and many names tell nothing"),
        Column("Operator", "name", "the operator that launched most of its time"),
        Column("Module", "name", "the nn.Module that did"),
        Column("Line", "place", "the line of your code that did"),
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


def _operators(report: Report, options: Options) -> Table:
    on_device, every = busiest_ops(report)
    device = Column("On the device", "ns", "device work that it launched itself")
    columns = (
        Column("Operator", "name"),
        _CALLS,
        *((device,) if on_device else ()),
        Column("Self", "ns", "on the host, without the operators that it calls"),
        Column("Total", "ns", "on the host, with all that it calls"),
        Column("Line", "place", "the line of your code with most of its time"),
    )
    rows = (
        (
            op.name, op.n_calls, *((op.device_ns,) if on_device else ()), op.self_ns, op.total_ns,
            short_place(op.location, options),
        )
        for op in every
    )  # fmt: skip
    return table("operators", "Operators", columns, rows, sorted_by=2, word="op")


def _copies(report: Report) -> Table:
    columns = (
        Column("Copy", "name"),
        Column("Copies", "count"),
        Column("Total", "ns", "the sum of their lengths on the device"),
        Column("Bytes", "bytes", "bytes moved"),
    )
    rows = ((each.kind, each.n_calls, each.total_ns, each.bytes) for each in report.summary.copies)
    return table("copies", "Copies", columns, rows, sorted_by=2, word="copy")


def _syncs(report: Report) -> Table:
    columns = (
        Column("Call", "name"),
        _CALLS,
        Column("Total", "ns", "the time that the host was in it"),
    )
    rows = ((each.call, each.n_calls, each.total_ns) for each in report.summary.syncs)
    return table("syncs", "Syncs", columns, rows, word="sync")


def _waits(report: Report) -> Table:
    columns = (
        Column("Line", "name"),
        Column("What waits", "name"),
        _CALLS,
        Column("Allowed because", "name"),
    )
    rows = (
        (each.location.place if each.location else "", each.what, each.n_calls, each.allowed or "")
        for each in report.summary.waits or ()
    )
    return table("waits", "Waits for the device", columns, rows, sorted_by=2, word="line")


def _regions(report: Report) -> Table:
    columns = (
        Column("Region", "name"),
        Column("Entries", "count"),
        Column("Total", "ns", "the sum of their lengths on the host"),
        Column("On the device", "ns", "device work launched within"),
    )
    rows = (
        (each.name, each.n_calls, each.total_ns, each.device_ns) for each in report.summary.regions
    )
    return table("regions", "Regions", columns, rows, sorted_by=2, word="region")
