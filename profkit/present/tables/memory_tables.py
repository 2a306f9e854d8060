"""Memory by allocation site, over the history of a snapshot and over monitored steps."""

from collections.abc import Iterable
from typing import Final

from profkit.dataclass import dataclass
from profkit.model.location import Location
from profkit.model.memory_summary import AllocationSite, MemoryPoint, SnapshotDevice
from profkit.model.report import Report
from profkit.present.memory_text import (
    AllocationTable,
    MemorySeriesRow,
    devices_of,
    place_of,
    use_label,
)
from profkit.present.tables.columns import PLACE
from profkit.present.tables.definition import Column, Table

_SITE_COLUMNS: Final = (
    Column("text", "device"),
    Column("text", "moment"),
    *PLACE,
    Column("text", "category", value="site.category"),
    Column("text", "size_class", value="site.size_class"),
    Column("count", "n", value="site.n"),
    Column("bytes", "bytes", value="site.bytes"),
)
_POINT_COLUMNS: Final = (
    Column("text", "device"),
    Column("count", "entry", value="point.entry"),
    Column("us", "time_us", value="point.time_us"),
    Column("bytes", "active_bytes", value="point.active_bytes"),
    Column("bytes", "reserved_bytes", value="point.reserved_bytes"),
)
_STEP_COLUMNS: Final = (
    Column("count", "step"),
    Column("bytes", "host_rss_bytes"),
    Column("bytes", "tensor_bytes"),
    Column("bytes", "graph_bytes"),
    Column("bytes", "allocated_bytes"),
    Column("bytes", "peak_bytes"),
    Column("bytes", "reserved_bytes"),
    Column("bytes", "worker_bytes"),
)
_SERIES_COLUMNS: Final = (
    Column("text", "", "figure", screen="memory", value="name"),
    Column("bytes", "", "after the first step", screen="first", value="first_bytes"),
    Column("bytes", "", "after the last step", screen="last", value="last_bytes"),
    Column("bytes", "", "highest", screen="peak", value="highest_bytes"),
    Column("trend", screen="trend", value=lambda series: series),
)
_BLOCKS: Final = (Column("count", "n", "blocks"), Column("bytes", "bytes", "bytes"))
_USE_COLUMNS: Final = (
    Column("text", "", "use", value=lambda use: use_label(use.category) or "not known"),
    *_BLOCKS,
)
_FRAGMENTATION_COLUMNS: Final = (
    Column("place", "", "allocated at", value="location.place"),
    *_BLOCKS,
    Column(
        "bytes", "unreleasable_bytes", "unreleasable",
        "free bytes in the same segments, which cannot be released",
    ),
)  # fmt: skip
_REGION_COLUMNS: Final = (
    Column("name", "name", "region"),
    Column("count", "n", "entries"),
    Column("bytes", "peak_active_bytes", "peak", "highest active bytes in any entry"),
    Column(
        "bytes", "net_active_bytes", "net", "allocated minus freed; negative if more was freed"
    ),
)  # fmt: skip
OF_ALL: Final = "of all allocated bytes at that time"
"""What a share of memory is of."""


@dataclass(frozen=True)
class _SiteAtMoment:
    """What a line had allocated on a device at its peak, or at the end."""

    device: str
    moment: str
    site: AllocationSite

    @property
    def location(self) -> Location:
        """Return the source line."""
        return self.site.location


@dataclass(frozen=True)
class _PointOfDevice:
    """A point of the memory of a device over time."""

    device: str
    point: MemoryPoint


def define_memory_sites(report: Report) -> Table:
    """Define the table of allocation sites at the peak and at the end."""
    sites = (
        _SiteAtMoment(device.device, moment, site)
        for device in devices_of(report)
        for moment, sites in (("peak", device.peak_sites), ("end", device.top_sites))
        for site in sites
    )
    return Table("memory_sites", "Memory by source line", _SITE_COLUMNS, tuple(sites))


def define_memory_timeline(report: Report) -> Table:
    """Define the table of the memory of devices over time."""
    points = (
        _PointOfDevice(device.device, point)
        for device in devices_of(report)
        for point in device.timeline
    )
    return Table("memory_timeline", "Memory over time", _POINT_COLUMNS, tuple(points))


def define_memory_steps(report: Report) -> Table:
    """Define the table of the memory of a monitored program after each step."""
    memory = report.summary.memory
    steps = () if memory is None else memory.steps
    return Table("memory_steps", "Memory over steps", _STEP_COLUMNS, steps)


def define_allocation_sites(allocations: AllocationTable) -> Table:
    """Define the table of a device's live blocks at one moment, for people."""
    columns = (
        Column("place", "", "allocated at", value=_find_place),
        Column("name", "", "function", screen="", value="location.function"),
        Column("count", "", "blocks", value="n"),
        Column("bytes", "", "bytes", value="bytes"),
        Column("share", "", "share", OF_ALL, value=allocations.share),
        Column(
            "text",
            "",
            "used for",
            "inferred from the stack",
            value=lambda site: use_label(site.category),
        ),
    )

    return Table("memory-sites", allocations.title, columns, allocations.sites, sorted_by="bytes")


def define_memory_uses(device: SnapshotDevice) -> Table:
    """Define the table of a device's live blocks at its peak by use, for the page."""
    title = f"{device.device} at {'its peak' if device.has_peak else 'the end'}, by use"
    return Table("memory-uses", title, _USE_COLUMNS, device.peak_uses, sorted_by="bytes")


def define_fragmentation(device: SnapshotDevice) -> Table:
    """Define the table of the lines that keep a device's free memory, for the page."""
    return Table(
        "memory-fragmentation",
        f"{device.device}: allocations that keep free memory from being released",
        _FRAGMENTATION_COLUMNS,
        device.fragmentation_sites,
        sorted_by="unreleasable",
    )


def define_memory_regions(device: SnapshotDevice) -> Table:
    """Define the table of a device's memory by region, for the page."""
    title = f"{device.device}: memory by region"
    return Table("memory-regions", title, _REGION_COLUMNS, device.regions, sorted_by="peak")


def _find_place(site: AllocationSite) -> Location | str:
    # Blocks without a stack may be older than the recording.
    return place_of(site) if site.location.file is None else site.location


def define_memory_series(title: str, series: Iterable[MemorySeriesRow]) -> Table:
    """Define a table of memory over steps or over a history, for people."""
    return Table("memory-monitored", title, _SERIES_COLUMNS, tuple(series))
