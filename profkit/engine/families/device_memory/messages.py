"""Parts of messages about device memory: blocks, allocation sites and fragmentation."""

from collections.abc import Iterable, Sequence
from typing import Final

from profkit.engine.wording import counted, listed
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.model.location import Location
from profkit.model.memory_summary import AllocationSite, FragmentationSite
from profkit.units import format_bytes

_MIN_SHARE: Final = 0.05
"""A line that causes less of the fragmentation is not named."""


def site_line(location: Location, *, is_before_recording: bool = False) -> str:
    """Return ``train.py:12``, or why the source line is unknown."""
    if is_before_recording and location.file is None:
        return "memory allocated before recording"
    return location.place


def site_text(site: AllocationSite) -> str:
    """``model.py:340 (14.0 GiB in 64 blocks, activation)``."""
    use = "" if site.category == "unknown" else f", {site.category}"
    where = site_line(site.location, is_before_recording=site.is_before_recording)
    return f"{where} ({format_bytes(site.bytes)} in {counted(site.n, 'block')}{use})"


def reserved_text(memory: DeviceMemory) -> str:
    """``PyTorch reserved 10.0 GiB on cuda:0 for a peak of 6.00 GiB allocated``."""
    reserved = format_bytes(memory.peak_reserved_bytes)
    active = format_bytes(memory.peak_active_bytes)
    return f"PyTorch reserved {reserved} on {memory.label} for a peak of {active} allocated"


def retention_text(sites: Sequence[FragmentationSite]) -> str:
    """``2.00 MiB in 1 block of train.py:31 kept 1.00 GiB of free memory from being released.``."""
    n_bytes = format_bytes(sum(site.unreleasable_bytes for site in sites))
    parts = [
        f"{format_bytes(site.bytes)} in {counted(site.n, 'block')} of {site_line(site.location)}"
        for site in sites
    ]
    return f"{listed(parts)} kept {n_bytes} of free memory from being released."


def main_fragmentation_sites(sites: Sequence[FragmentationSite]) -> list[FragmentationSite]:
    """Select the sites with a source line that cause a good part of the fragmentation."""
    min_bytes = _MIN_SHARE * sum(site.unreleasable_bytes for site in sites)
    return [
        site
        for site in sites
        if site.location.file is not None and site.unreleasable_bytes >= min_bytes
    ]


def site_locations(sites: Iterable[AllocationSite | FragmentationSite]) -> tuple[Location, ...]:
    """Return the distinct source lines of sites, in their order."""
    locations = (site.location for site in sites if site.location.file is not None)
    return tuple(dict.fromkeys(locations))
