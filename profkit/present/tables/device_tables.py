"""What devices did, and what the host did with them: idle time, copies, syncs."""

from typing import Final

from profkit.dataclass import dataclass
from profkit.model.device_summary import DEVICE_TIMES, DeviceSummary, IdleTime
from profkit.model.report import Report
from profkit.present.idle_causes import IDLE_CAUSES
from profkit.present.tables.columns import CALLED_PER_STEP, CALLS
from profkit.present.tables.definition import Column, Table

_DEVICE_COLUMNS: Final = (
    Column("name", "device", "device"),
    Column("text", "name", "name"),
    Column("ns", "span_ns", "span", "from the start of its first work to the end of its last"),
    Column("ns", "busy_ns", "busy", "a kernel, copy or fill ran"),
    Column("ns", "idle_ns", "idle", "the rest of the span"),
    Column("ns", "compute_ns", "compute", DEVICE_TIMES["Compute"]),
    Column("ns", "communication_ns", "communication", DEVICE_TIMES["Communication"]),
    Column("ns", "overlap_ns", "overlap", DEVICE_TIMES["Overlap"]),
    Column("ns", "memcpy_ns", "copying", DEVICE_TIMES["Copying"]),
    Column("count", "n_kernels", "kernels"),
    Column("count", "n_memcpy", "copies"),
    Column("count", "n_memset", "fills"),
    Column(
        "share", "occupancy_share", "occupancy",
        "of the warps that the device can hold, while kernels with an estimate ran: the profiler's "
        "estimate from launches, not measured",
    ),
    Column(
        "share", "tensor_core_share", "tensor cores",
        "of kernel time, recognized by kernel names: a lower bound",
    ),
)  # fmt: skip
_IDLE_COLUMNS: Final = (
    Column("name", "device", "device", value="device.device"),
    Column("text", "cause", value="idle.cause"),
    Column(
        "text", "", "cause", "what the host did meanwhile",
        value=lambda cause: IDLE_CAUSES[cause.idle.cause].label,
    ),
    Column("ns", "ns", "idle", value="idle.ns"),
    Column("share", "", "share", "of the device's span", value="span_share"),
)  # fmt: skip
_COPY_COLUMNS: Final = (
    Column("name", "kind", "copy"),
    CALLED_PER_STEP,
    Column("ns", "total_ns", "total", "sum of their lengths on the device"),
    Column("count", "n_calls", "copies", "in the whole recording"),
    Column("bytes", "bytes", "bytes", "bytes copied"),
)
_SYNC_COLUMNS: Final = (
    Column("name", "call", "call"),
    CALLED_PER_STEP,
    Column("ns", "total_ns", "total", "host time in all these calls"),
    CALLS,
)
_SYNC_SITE_COLUMNS: Final = (
    Column("name", "", "line", value="location.place"),
    Column("name", "operation", "operation"),
    CALLS,
    Column("name", "allowed_reason", "allowed because"),
    Column("place", "location"),
)


@dataclass(frozen=True)
class _IdleCause:
    """A part of the idle time of a device."""

    device: DeviceSummary
    idle: IdleTime

    @property
    def span_share(self) -> float | None:
        """Return its share of the device's span."""
        return self.idle.ns / self.device.span_ns if self.device.span_ns else None


def define_devices(report: Report) -> Table:
    """Define the table of devices."""
    return Table("devices", "Devices", _DEVICE_COLUMNS, report.summary.devices)


def define_idle(report: Report) -> Table:
    """Define the table of the idle time of devices."""
    causes = (
        _IdleCause(device, idle) for device in report.summary.devices for idle in device.idle_causes
    )
    return Table("idle", "Idle time of devices", _IDLE_COLUMNS, tuple(causes), word="idle time")


def define_copies(report: Report) -> Table:
    """Define the table of copies."""
    return Table(
        "copies",
        "Copies",
        _COPY_COLUMNS,
        report.summary.copies,
        sorted_by="total",
        word="copy",
        exported="kind n_calls total_ns per_step_ns bytes",
    )


def define_syncs(report: Report) -> Table:
    """Define the table of calls that synchronize."""
    return Table(
        "syncs",
        "Syncs",
        _SYNC_COLUMNS,
        report.summary.syncs,
        word="sync",
        exported="call n_calls total_ns per_step_ns",
    )


def define_sync_sites(report: Report) -> Table:
    """Define the table of the source lines that synchronize."""
    return Table(
        "sync_sites",
        "Syncs by source line",
        _SYNC_SITE_COLUMNS,
        report.summary.sync_sites or (),
        sorted_by="calls",
        word="sync",
        exported="operation allowed_reason n_calls location",
    )
