"""Parts of sentences about device memory, in the user's own lines and figures."""

from collections.abc import Iterable, Sequence
from typing import Final

from profkit.model.location import Location
from profkit.model.memory_summary import AllocationSite, FragmentationSite
from profkit.units import format_bytes, format_count

_TELLING_SHARE: Final = 0.05
"""What holds less than this in place is not worth a reader's time."""


def blocks(n: int) -> str:
    """``1 block``, ``1,200 blocks``."""
    return "1 block" if n == 1 else f"{format_count(n)} blocks"


def site_line(location: Location, *, is_before_recording: bool = False) -> str:
    """``train.py:12``, or what is known of memory without a line.

    Args:
        location: Where it was allocated.
        is_before_recording: Whether that was before the history began.
    """
    if location.file is not None:
        return location.place
    return "what was allocated before the recording" if is_before_recording else "an unknown line"


def site_text(site: AllocationSite) -> str:
    """``model.py:340 (14.0 GiB in 64 blocks, activation)``."""
    use = "" if site.category == "unknown" else f", {site.category}"
    where = site_line(site.location, is_before_recording=site.is_before_recording)
    return f"{where} ({format_bytes(site.bytes)} in {blocks(site.n)}{use})"


def fragmentation_text(site: FragmentationSite) -> str:
    """``2.00 MiB in 1 block of train.py:31``."""
    return f"{format_bytes(site.bytes)} in {blocks(site.n)} of {site_line(site.location)}"


def main_fragmentation_sites(pins: Sequence[FragmentationSite]) -> list[FragmentationSite]:
    """Those that have a line and hold a good part of the free memory in place."""
    least = _TELLING_SHARE * sum(pin.unreleasable_bytes for pin in pins)
    return [
        pin for pin in pins if pin.location.file is not None and pin.unreleasable_bytes >= least
    ]


def listed(parts: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    if len(parts) < 2:  # noqa: PLR2004  (one alone)
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def site_locations(sites: Iterable[AllocationSite | FragmentationSite]) -> tuple[Location, ...]:
    """The lines of some sites that are known, each once, in their order."""
    known = (site.location for site in sites if site.location.file is not None)
    return tuple(dict.fromkeys(known))
