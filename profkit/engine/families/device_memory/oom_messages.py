"""Why a request found no room on a device, and what to change, in sentences."""

from typing import Final

from profkit.engine.families.device_memory.messages import listed, site_line, site_text
from profkit.engine.families.device_memory.settings_messages import (
    EXPANDABLE,
    fails_with_any_setting,
    fitting_setting,
)
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.index.snapshot.oom_analysis import AllocationFailure
from profkit.model.events import Rows
from profkit.model.location import Location
from profkit.model.memory_summary import AllocationSite
from profkit.units import format_bytes, format_count, format_times

MAX_LINES: Final = 3
"""So many lines, and so many ways, are named."""

_REASONS: Final = {
    "exhaustion": "The device is full",
    "fragmentation": "The memory is in pieces",
    "outside": "Much of the device is not PyTorch's",
}
_ADVICE: Final = {
    "activation": "activations: use a smaller batch, `torch.utils.checkpoint` or `torch.autocast`",
    "parameter": "parameters: keep them in bfloat16, or shard them",
    "gradient": "gradients: use a smaller batch, or `zero_grad(set_to_none=True)` before it",
    "optimizer-state": "optimizer state: use an optimizer with less of it, or shard it",
    "input": "inputs: move a batch to the device when its turn comes",
    "workspace": "workspaces: use a smaller batch",
    "communication": "communication: use smaller buckets",
}


def oom_message(
    memory: DeviceMemory,
    line: Location,
    told: AllocationFailure,
    sites: tuple[AllocationSite, ...],
    n: int,
) -> str:
    """What was asked for, what stood in its way, and whose the memory was.

    Args:
        memory: The device.
        line: The line that asked.
        told: The request that is told of.
        sites: What stood then, the most bytes first.
        n: How many requests of the line found no room.
    """
    where = f" asked for at {line.place}" if line.file else ""
    often = f", {format_times(n)}" if n > 1 else ""
    in_use = f"{format_bytes(told.active_bytes)} of PyTorch's {format_bytes(told.reserved_bytes)}"
    parts = [f"{memory.label} had no room for {format_bytes(told.requested_bytes)}{where}{often}."]
    free = told.device_free_bytes
    if told.reason == "limit":
        own = None if told.driver is None else told.driver.limit_bytes
        limit = f"a limit of the program's own{f' of {format_bytes(own)}' if own else ''}"
        parts.append(
            f"The driver had {format_bytes(free or 0)} left, which is enough: {limit} was reached, "
            f"or memory was given back a moment too late. {in_use} were in use."
        )
        return " ".join(parts)
    full = _REASONS[told.reason]
    left = "" if free is None else f", and the driver had {format_bytes(free)} left"
    lacked = f", {format_bytes(told.missing_bytes)} too little" if told.missing_bytes else ""
    parts.append(f"{full}: {in_use} were in use{left}{lacked}.")
    if told.unreleasable_bytes:
        longest = told.largest_usable_block_bytes
        of_them = "" if longest is None else f", the longest fit for it {format_bytes(longest)}"
        enough = ""
        if told.fits_if_compacted:
            why = (
                ", and no setting would have joined them"
                if fails_with_any_setting(memory, told)
                else ""
            )
            enough = f" In one piece they would have been enough{why}."
        parts.append(
            f"{format_bytes(told.unreleasable_bytes)} lay free in pieces{of_them}.{enough}"
        )
    if sites:
        parts.append(f"Most was held by {listed([site_text(each) for each in sites[:MAX_LINES]])}.")
    parts.append(_others(told))
    return " ".join(filter(None, parts))


def _others(told: AllocationFailure) -> str:
    """What of the device was not this allocator's, as far as anyone can tell."""
    if told.outside_bytes is None or told.driver is None:
        if told.device_free_bytes is None:
            return ""
        known = format_bytes(told.reserved_bytes + told.device_free_bytes)
        return (
            f"If the device has more than these {known}, the rest is other programs' or libraries'."
        )
    others, own = told.driver.others_bytes, told.driver.non_torch_bytes
    whose = [f"{format_bytes(others)} by other programs"] if others else []
    whose += [f"{format_bytes(own)} by libraries of this program"] if own else []
    return (
        f"{format_bytes(told.outside_bytes)} of the device's "
        f"{format_bytes(told.driver.total_bytes)} were held outside PyTorch"
        f"{': ' if whose else ''}{listed(whose)}."
    )


def oom_fix(
    memory: DeviceMemory, line: Location, told: AllocationFailure, sites: tuple[AllocationSite, ...]
) -> str:
    """The ways to make room, those with the most bytes first.

    Args:
        memory: The device.
        line: The line that asked.
        told: The request that is told of.
        sites: What stood then, the most bytes first.
    """
    if told.reason == "limit":
        return (
            "Raise `torch.cuda.set_per_process_memory_fraction` if the program sets it, and see "
            "with `nvidia-smi` what else uses the device."
        )
    by_use: dict[str, int] = {}
    for site in sites:
        by_use[site.category] = by_use.get(site.category, 0) + site.bytes
    ways = [(n_bytes, _ADVICE[use]) for use, n_bytes in by_use.items() if use in _ADVICE]
    ways.extend(
        (site.bytes, f"{site_line(site.location)}: see whether all of it is needed at once")
        for site in sites
        if site.category == "unknown" and site.location.file is not None
    )
    if told.reason == "outside":
        outside = "outside PyTorch: see with `nvidia-smi` who else uses the device"
        ways.append((told.outside_bytes or 0, outside))
    if line.file:
        ways.append(
            (told.requested_bytes, f"{line.place}: compute in chunks what it asks for at once")
        )
    pieces = None
    setting = fitting_setting(memory, told) if told.unreleasable_bytes else None
    if setting is not None:
        pieces = (told.unreleasable_bytes, f"free in pieces: {setting}")
        ways.append(pieces)
    ways.sort(key=lambda each: -each[0])
    told_ways = ways[:MAX_LINES]
    if pieces is not None and pieces not in told_ways and told.fits_if_compacted:
        told_ways.append(pieces)
    if not ways:
        return "Use a smaller batch, and record the history with stacks to see what holds memory."
    chosen = "; ".join(f"{format_bytes(n_bytes)} {way}" for n_bytes, way in told_ways)
    return f"In the order of bytes: {chosen}."


def flush_message(memory: DeviceMemory, full: Rows, again_bytes: int) -> str:
    """How often requests made the allocator give its cache back, and what that came to.

    Args:
        memory: The device.
        full: Such runs, as places in :attr:`DeviceMemory.flushes`.
        again_bytes: What of it was asked of the driver again.
    """
    flushes = memory.flushes
    threshold = _threshold(memory)
    why = "" if threshold is None else f" within `garbage_collection_threshold` ({threshold})"
    return (
        f"{format_times(len(full)).capitalize()} a request found no room{why} on {memory.label}: "
        f"the allocator gave {format_bytes(int(flushes.n_bytes[full].sum()))} of its cache back to "
        f"the driver, in {format_count(int(flushes.n_calls[full].sum()))} calls that wait for the "
        f"device, and asked for {format_bytes(again_bytes)} of it anew."
    )


def flush_fix(memory: DeviceMemory) -> str:
    """What to do about it.

    Args:
        memory: The device.
    """
    if _threshold(memory) is not None:
        return (
            "Raise `garbage_collection_threshold` in `PYTORCH_CUDA_ALLOC_CONF`, or take it out: "
            "the allocator frees its cache by itself before it gives a request up."
        )
    grows = memory.settings.expandable
    pieces = "" if grows else f", or set `{EXPANDABLE}`, so that cached pieces fit"
    return f"The device is nearly full: use a smaller batch, keep fewer tensors{pieces}."


def _threshold(memory: DeviceMemory) -> float | None:
    """``garbage_collection_threshold``, where the program has set one."""
    value = memory.snapshot.settings.get("garbage_collection_threshold")
    return float(value) if isinstance(value, int | float) and value > 0 else None
