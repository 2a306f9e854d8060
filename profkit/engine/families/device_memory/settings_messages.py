"""The effect of other allocator settings, as fixes and evidence."""

from dataclasses import replace
from typing import Final

from profkit.index.snapshot.allocator.settings import CONF, AllocatorSettings
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.index.snapshot.oom_analysis import AllocationFailure
from profkit.index.snapshot.what_if import SimulationResult, WhatIf
from profkit.model.finding import Cost, EvidenceValue
from profkit.units import format_bytes

_MIN_SAVED_BYTES: Final = 256 << 20
_MIN_SAVED_SHARE: Final = 0.1
"""A setting that saves less of the reserved memory is not recommended."""
_ORDER: Final = "Allocate long-lived tensors before short-lived ones"


def expandable_setting(settings: AllocatorSettings) -> str:
    """Return the variable with expandable segments and the program's other settings."""
    expandable = replace(settings, expandable=True, max_split_bytes=None)
    return f"{CONF}={expandable.alloc_conf}"


def _tried(what_if: WhatIf) -> list[SimulationResult]:
    return [result for result in _results(what_if) if result.is_complete]


def _useful(what_if: WhatIf) -> list[SimulationResult]:
    """Return the results of the settings that are recommended."""
    recorded = what_if.recorded.peak_bytes
    return [
        result
        for result in _tried(what_if)
        if _is_significant(recorded - result.peak_bytes, recorded)
    ]


def fragmentation_cost(memory: DeviceMemory, excess_bytes: int) -> Cost:
    """Return the bytes that the first recommended setting saves, else at most all of the excess."""
    what_if = memory.what_if
    useful = _useful(what_if) if what_if.is_reproduced else []
    if not useful:
        return Cost(bytes=excess_bytes, basis="upper-bound")
    return Cost(bytes=what_if.recorded.peak_bytes - useful[0].peak_bytes, basis="estimate")


def suggest_fragmentation_fix(memory: DeviceMemory) -> str:
    """Suggest a fix for fragmentation, with its peak in a simulation of the history."""
    what_if = memory.what_if
    if not what_if.is_reproduced:
        return _estimated_fix(memory)

    recorded = what_if.recorded.peak_bytes
    tried, useful = _tried(what_if), _useful(what_if)

    if useful:
        first, *alternatives = useful
        also = "".join(
            f"; {_with(memory, result)} {format_bytes(result.peak_bytes)}"
            for result in alternatives
        )
        with_or_without = "without it" if _removes_limit(memory, first) else "with it"
        return (
            f"{_change(memory, first)}: {with_or_without} peak reserved memory would be "
            f"{format_bytes(first.peak_bytes)} instead of {format_bytes(recorded)}{also}. {_ORDER}."
        )

    figures = " and ".join(
        f"{format_bytes(result.peak_bytes)} {_with(memory, result)}" for result in tried
    )
    if not figures:
        return _program_fix(memory)

    return (
        f"No setting would reduce the peak of {format_bytes(recorded)} reserved by much: "
        f"{figures}. {_program_fix(memory)}"
    )


def fragmentation_evidence(memory: DeviceMemory) -> dict[str, EvidenceValue]:
    """Return the peaks of reserved memory in simulations of the history."""
    what_if = memory.what_if
    expandable, split = what_if.expandable, what_if.best_split
    return {
        "is_reproduced": what_if.is_reproduced,
        "reproduced_within_bytes": what_if.max_error_bytes,
        "reserved_if_expandable_bytes": None if expandable is None else expandable.peak_bytes,
        "best_max_split": None if split is None else split.settings.change or "none",
        "reserved_if_best_max_split_bytes": None if split is None else split.peak_bytes,
    }


def fitting_setting(memory: DeviceMemory, failure: AllocationFailure) -> str | None:
    """Return the setting with which a failed allocation would fit, or None if there is none."""
    what_if = memory.what_if
    if failure.fits_if_compacted and what_if.is_reproduced:
        result = what_if.setting_that_serves(failure.place)
        if result is None:
            return None
        change = _change(memory, result)
        return f"{change[0].lower()}{change[1:]}, with which this allocation would fit"
    if memory.settings.expandable:
        return None
    enough = ", which may be enough" if failure.fits_if_compacted else ""
    return f"set `{expandable_setting(memory.settings)}`{enough}"


def fails_with_any_setting(memory: DeviceMemory, failure: AllocationFailure) -> bool:
    """Return whether the allocation fails with all of the simulated settings, if there are any."""
    what_if = memory.what_if
    is_simulated = what_if.expandable is not None or len(what_if.split_results) > 0
    return is_simulated and what_if.setting_that_serves(failure.place) is None


def fitting_setting_evidence(
    memory: DeviceMemory, failure: AllocationFailure
) -> dict[str, EvidenceValue]:
    """Return whether other settings were simulated, and one with which the allocation would fit."""
    if failure.reason == "limit" or not failure.fits_if_compacted:
        return {}
    what_if = memory.what_if
    result = what_if.setting_that_serves(failure.place)
    return {
        "is_reproduced": what_if.is_reproduced,
        "fits_with": None if result is None else result.settings.change or "no max_split_size_mb",
    }


def _results(what_if: WhatIf) -> list[SimulationResult]:
    """Return expandable segments and the best split limit, a much better limit first."""
    expandable, split = what_if.expandable, what_if.best_split
    results = [result for result in (expandable, split) if result is not None]
    if expandable is not None and split is not None:
        less = expandable.peak_bytes - split.peak_bytes
        if _is_significant(less, what_if.recorded.peak_bytes):
            results.reverse()
    return results


def _is_significant(saved_bytes: int, recorded_bytes: int) -> bool:
    return saved_bytes >= max(_MIN_SAVED_BYTES, _MIN_SAVED_SHARE * recorded_bytes)


def _removes_limit(memory: DeviceMemory, result: SimulationResult) -> bool:
    """Return whether the change is to remove ``max_split_size_mb``."""
    has_limit = memory.settings.max_split_bytes is not None
    return has_limit and (memory.settings.expandable or not result.settings.change)


def _change(memory: DeviceMemory, result: SimulationResult) -> str:
    if _removes_limit(memory, result):
        limit = format_bytes(memory.settings.max_split_bytes or 0)
        return f"Remove `max_split_size_mb` ({limit} here) from `{CONF}`"
    return f"Set `{CONF}={result.settings.alloc_conf}`"


def _with(memory: DeviceMemory, result: SimulationResult) -> str:
    if _removes_limit(memory, result):
        return "without `max_split_size_mb`"
    return f"with `{result.settings.change}`"


def _program_fix(memory: DeviceMemory) -> str:
    compact = format_bytes(memory.driver_requests.compact_bytes)
    return (
        f"{_ORDER}, and pad varying sizes to a few: without fragmentation about {compact} would be "
        "enough."
    )


def _estimated_fix(memory: DeviceMemory) -> str:
    """Return the fix if the history cannot be simulated, from the memory that was active."""
    compact = format_bytes(memory.driver_requests.compact_bytes)
    limit = memory.settings.max_split_bytes
    if not memory.settings.expandable:
        setting = expandable_setting(memory.settings)
        return f"Set `{setting}`: at best {compact} would be enough then. {_ORDER}."
    if limit is not None:
        return (
            f"Remove `max_split_size_mb` ({format_bytes(limit)} here) from `{CONF}`: it prevents "
            "smaller requests from using larger free blocks, and at best "
            f"{compact} would be enough without it. {_ORDER}."
        )
    return _program_fix(memory)
