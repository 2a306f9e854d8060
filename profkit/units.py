"""Formats nanoseconds, bytes and shares as text, such as ``1.5 ms``, ``3.2 GiB`` or ``12%``.

No other module formats them. Times are integer nanoseconds, sizes integer bytes, shares 0 to 1.
"""

from typing import Final

_TIME_STEPS: Final = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))
_SIZE_STEPS: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_AGE_STEPS: Final = ((172_800, 86_400, "days"), (7_200, 3_600, "h"), (120, 60, "min"), (1, 1, "s"))
"""From how many seconds on an age is in which unit: 90 seconds are more telling than one minute."""
_MIN_SHARE: Final = 0.001
_MIN_NUMBER: Final = 0.005


def _three_digits(value: float) -> str:
    """Format a number with three significant digits, never in scientific notation."""
    magnitude = abs(value)
    if magnitude >= 99.95:  # noqa: PLR2004  (rounds to three digits before the point)
        return f"{value:,.0f}"
    if magnitude >= 9.995:  # noqa: PLR2004
        return f"{value:.1f}"
    return f"{value:.2f}"


def format_ns(ns: float) -> str:
    """Format nanoseconds, also negative ones, with three significant digits: ``1.50 ms``."""
    for scale, unit in _TIME_STEPS:
        if abs(ns) >= scale:
            return f"{_three_digits(ns / scale)} {unit}"
    return f"{ns:.0f} ns"


def format_bytes(n_bytes: float) -> str:
    """Format bytes, also negative ones, in powers of 1024: ``3.20 GiB``."""
    for scale, unit in _SIZE_STEPS:
        if abs(n_bytes) >= scale:
            return f"{_three_digits(n_bytes / scale)} {unit}"
    return f"{n_bytes:.0f} B"


def format_share(share: float) -> str:
    """Format a share from 0 to 1 as a percentage: ``12%``, ``0.4%``, ``<0.1%``."""
    if share != 0 and abs(share) < _MIN_SHARE:
        return "<0.1%"
    percent = share * 100
    return f"{percent:.0f}%" if abs(percent) >= 9.95 or percent == 0 else f"{percent:.1f}%"  # noqa: PLR2004


def format_count(count: int) -> str:
    """Format an integer with separated thousands: ``12,400``."""
    return f"{count:,}"


def format_number(number: float) -> str:
    """Format a number of 0 or more with about three digits: ``2.50``, ``0.07``, ``<0.01``."""
    return "<0.01" if 0 < number < _MIN_NUMBER else _three_digits(number)


def format_times(count: int) -> str:
    """Format how often something happened: ``once``, ``twice``, ``1,200 times``."""
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def format_age(ns: int) -> str:
    """Format how long ago something happened in whole units: ``5 min ago``, ``just now``."""
    seconds = ns // 1_000_000_000
    for least, scale, unit in _AGE_STEPS:
        if seconds >= least:
            return f"{seconds // scale:,} {unit} ago"
    return "just now"
