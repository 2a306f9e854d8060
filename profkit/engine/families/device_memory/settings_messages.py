"""What other settings of the allocator would have changed, in sentences and figures."""

from typing import Final

from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.index.snapshot.oom_analysis import AllocationFailure
from profkit.index.snapshot.what_if import SimulationResult, WhatIf
from profkit.model.finding import EvidenceValue
from profkit.units import format_bytes

CONF: Final = "PYTORCH_CUDA_ALLOC_CONF"
EXPANDABLE: Final = f"{CONF}=expandable_segments:True"

_MIN_SAVED_BYTES: Final = 256 << 20
_MIN_SAVED_SHARE: Final = 0.1
"""What saves less of what was reserved is not worth a setting."""
_ORDER: Final = "Allocate what lives long before what comes and goes"


def fragmentation_fix(memory: DeviceMemory) -> str:
    """What to do about free memory in pieces, with what it would come to where that is known.

    Args:
        memory: The device.
    """
    other = memory.what_if
    if not other.is_reproduced:
        return _from_levels(memory)
    most = other.recorded.peak_bytes
    tried = _outcomes(other)
    helping = [
        each for each in tried if each.is_complete and _is_much(most - each.peak_bytes, most)
    ]
    if helping:
        first, *others = helping
        also = "".join(
            f"; {_with(memory, each)} {format_bytes(each.peak_bytes)}" for each in others
        )
        it = "without it" if _goes(memory, first) else "with it"
        return (
            f"{_done(memory, first)}: {it} reserved memory at its peak would have been "
            f"{format_bytes(first.peak_bytes)} instead of {format_bytes(most)}{also}. {_ORDER}."
        )
    figures = " and ".join(
        f"{format_bytes(each.peak_bytes)} {_with(memory, each)}"
        for each in tried
        if each.is_complete
    )
    no_use = (
        f"No setting would have saved much of the {format_bytes(most)} that were reserved at the "
        f"peak: {figures}. "
    )
    return f"{no_use if figures else ''}{_of_the_program(memory)}"


def fragmentation_evidence(memory: DeviceMemory) -> dict[str, EvidenceValue]:
    """The figures behind it: what the history played again reserved at its peak.

    Args:
        memory: The device.
    """
    other = memory.what_if
    expandable, split = other.expandable, other.best_split
    return {
        "is_reproduced": other.is_reproduced,
        "reproduced_within_bytes": other.max_error_bytes,
        "reserved_if_expandable_bytes": None if expandable is None else expandable.peak_bytes,
        "best_max_split": None if split is None else split.alloc_conf or "none",
        "reserved_if_best_max_split_bytes": None if split is None else split.peak_bytes,
    }


def fitting_setting(memory: DeviceMemory, told: AllocationFailure) -> str | None:
    """What to set so that what is free in pieces makes room; None where no setting is of use.

    Args:
        memory: The device.
        told: The request that found no room.
    """
    other = memory.what_if
    if told.fits_if_compacted and other.is_reproduced:
        found = other.setting_that_serves(told.place)
        if found is None:
            return None
        done = _done(memory, found)
        return f"{done[0].lower()}{done[1:]}, and this request would have fitted"
    if memory.settings.expandable:
        return None
    enough = ", which alone may have been enough" if told.fits_if_compacted else ""
    return f"set `{EXPANDABLE}`{enough}"


def fails_with_any_setting(memory: DeviceMemory, told: AllocationFailure) -> bool:
    """Whether the request was tried under other settings and met under none.

    Args:
        memory: The device.
        told: The request that found no room.
    """
    other = memory.what_if
    tried = other.expandable is not None or len(other.split_results) > 0
    return tried and other.setting_that_serves(told.place) is None


def fitting_setting_evidence(
    memory: DeviceMemory, told: AllocationFailure
) -> dict[str, EvidenceValue]:
    """Whether the request was tried under other settings, and one that would have met it.

    Args:
        memory: The device.
        told: The request that found no room.
    """
    if told.reason == "limit" or not told.fits_if_compacted:
        return {}
    other = memory.what_if
    found = other.setting_that_serves(told.place)
    return {
        "is_reproduced": other.is_reproduced,
        "fits_with": None if found is None else found.alloc_conf or "no max_split_size_mb",
    }


def _outcomes(other: WhatIf) -> list[SimulationResult]:
    """Expandable segments and the best limit; the latter first where it reserves much less."""
    expandable, split = other.expandable, other.best_split
    found = [each for each in (expandable, split) if each is not None]
    if expandable is not None and split is not None:
        less = expandable.peak_bytes - split.peak_bytes
        if _is_much(less, other.recorded.peak_bytes):
            found.reverse()
    return found


def _is_much(n_bytes: int, most: int) -> bool:
    return n_bytes >= max(_MIN_SAVED_BYTES, _MIN_SAVED_SHARE * most)


def _goes(memory: DeviceMemory, outcome: SimulationResult) -> bool:
    """Whether the setting is to have no ``max_split_size`` any more."""
    has_limit = memory.settings.max_split_bytes is not None
    return has_limit and (memory.settings.expandable or not outcome.alloc_conf)


def _done(memory: DeviceMemory, outcome: SimulationResult) -> str:
    if _goes(memory, outcome):
        limit = format_bytes(memory.settings.max_split_bytes or 0)
        return f"Take `max_split_size_mb` ({limit} here) out of `{CONF}`"
    return f"Set `{CONF}={outcome.alloc_conf}`"


def _with(memory: DeviceMemory, outcome: SimulationResult) -> str:
    return (
        "without `max_split_size_mb`" if _goes(memory, outcome) else f"with `{outcome.alloc_conf}`"
    )


def _of_the_program(memory: DeviceMemory) -> str:
    tight = format_bytes(memory.driver_requests.compact_bytes)
    return (
        f"{_ORDER}, and pad changing sizes to a few: about {tight} would do if free memory were in "
        f"one piece."
    )


def _from_levels(memory: DeviceMemory) -> str:
    """Where the history cannot be played again: what it says of how much was in use."""
    tight = format_bytes(memory.driver_requests.compact_bytes)
    limit = memory.settings.max_split_bytes
    if not memory.settings.expandable:
        return f"Set `{EXPANDABLE}`: at best {tight} would do then. {_ORDER}."
    if limit is not None:
        return (
            f"Take `max_split_size_mb` ({format_bytes(limit)} here) out of `{CONF}`: no shorter "
            f"request may have a free block beyond it, and at best {tight} would do without. Free "
            f"what stands between, or allocate it first."
        )
    return _of_the_program(memory)
