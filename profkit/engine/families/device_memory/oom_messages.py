"""Messages and fixes for failed allocations, and for requests that make the allocator flush."""

from typing import Final

from profkit.engine.families.device_memory.messages import site_line, site_text
from profkit.engine.families.device_memory.settings_messages import (
    expandable_setting,
    fails_with_any_setting,
    fitting_setting,
)
from profkit.engine.wording import listed
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.index.snapshot.oom_analysis import AllocationFailure
from profkit.index.snapshot.recomputed_modules import has_checkpoints
from profkit.model.events import Rows
from profkit.model.location import Location
from profkit.model.memory_summary import AllocationSite
from profkit.units import format_bytes, format_count, format_times

MAX_LINES: Final = 3
"""Number of lines, and of ways to free memory, that a message names."""

_REASONS: Final = {
    "exhaustion": "The device is full",
    "fragmentation": "Free memory is fragmented",
    "outside": "Much of the device is in use outside PyTorch",
}
_ADVICE: Final = {
    "activation": "activations: use a smaller batch, `torch.utils.checkpoint` or `torch.autocast`",
    "parameter": "parameters: store them in bfloat16, or shard them",
    "gradient": "gradients: use a smaller batch, or `zero_grad(set_to_none=True)` before it",
    "optimizer-state": "optimizer state: use an optimizer with less of it, or shard it",
    "input": "inputs: copy each batch to the device when it is needed",
    "workspace": "workspaces: use a smaller batch",
    "communication": "communication: use smaller buckets",
}
_ADVICE_BESIDE_CHECKPOINTS: Final = (
    "activations: use a smaller batch or `torch.autocast`, or have the program's checkpoints keep "
    "less"
)


def describe_oom(
    memory: DeviceMemory,
    line: Location,
    failure: AllocationFailure,
    sites: tuple[AllocationSite, ...],
    n: int,
) -> str:
    """Describe the failed allocation, its cause, and the allocation sites with the most memory.

    Args:
        line: The source line of the allocation.
        failure: The failure to describe, of all at that line.
        sites: Live memory at that moment, the most bytes first.
        n: Number of failed allocations at that line.
    """
    place = f" at {line.place}" if line.file else ""
    times = f", {format_times(n)}" if n > 1 else ""
    requested = format_bytes(failure.requested_bytes)
    parts = [f"{memory.label}: allocation of {requested} failed{place}{times}."]

    active = (
        f"{format_bytes(failure.active_bytes)} of the {format_bytes(failure.reserved_bytes)} that "
        "PyTorch had reserved were active"
    )

    free = failure.device_free_bytes
    if failure.reason == "limit":
        limit_bytes = None if failure.driver is None else failure.driver.limit_bytes
        limit = f" of {format_bytes(limit_bytes)}" if limit_bytes else ""
        parts.append(
            f"The driver had {format_bytes(free or 0)} free, which is enough: the program's memory "
            f"limit{limit} was reached, or memory was freed too late. {active}."
        )
        return " ".join(parts)

    driver = "" if free is None else f", and the driver had {format_bytes(free)} free"
    missing = failure.missing_bytes
    too_little = f", {format_bytes(missing)} too little" if missing else ""
    parts.append(f"{_REASONS[failure.reason]}: {active}{driver}{too_little}.")

    if failure.unreleasable_bytes:
        parts.append(_fragmented(memory, failure))
    if sites:
        largest = listed([site_text(site) for site in sites[:MAX_LINES]])
        parts.append(f"Largest allocation sites: {largest}.")
    parts.append(_describe_outside(failure))
    return " ".join(filter(None, parts))


def _fragmented(memory: DeviceMemory, failure: AllocationFailure) -> str:
    largest = failure.largest_usable_block_bytes
    at_most = "" if largest is None else f" of at most {format_bytes(largest)}"
    text = f"{format_bytes(failure.unreleasable_bytes)} were free in separate blocks{at_most}"
    if not failure.fits_if_compacted:
        return f"{text}."
    but = ""
    if fails_with_any_setting(memory, failure):
        but = ", but no allocator setting would have merged them"
    return f"{text}. As one block they would have been enough{but}."


def _describe_outside(failure: AllocationFailure) -> str:
    """Describe the device memory outside this allocator, as far as it is known."""
    if failure.outside_bytes is None or failure.driver is None:
        if failure.device_free_bytes is None:
            return ""
        used = format_bytes(failure.reserved_bytes + failure.device_free_bytes)
        return f"Device memory beyond these {used} is in use by other programs or libraries."

    others_bytes, libraries_bytes = failure.driver.others_bytes, failure.driver.non_torch_bytes
    owners = [f"{format_bytes(others_bytes)} by other programs"] if others_bytes else []
    owners += (
        [f"{format_bytes(libraries_bytes)} by libraries of this program"] if libraries_bytes else []
    )
    return (
        f"{format_bytes(failure.outside_bytes)} of the device's "
        f"{format_bytes(failure.driver.total_bytes)} were in use outside PyTorch"
        f"{': ' if owners else ''}{listed(owners)}."
    )


def suggest_oom_fix(
    memory: DeviceMemory,
    line: Location,
    failure: AllocationFailure,
    sites: tuple[AllocationSite, ...],
) -> str:
    """Return a setting that is enough, then the ways to free memory, the most bytes first."""
    if failure.reason == "limit":
        return (
            "Raise `torch.cuda.set_per_process_memory_fraction` if the program sets it, and check "
            "with `nvidia-smi` what else uses the device."
        )

    advice = dict(_ADVICE)
    if has_checkpoints(memory.snapshot.stacks):
        advice["activation"] = _ADVICE_BESIDE_CHECKPOINTS

    by_use: dict[str, int] = {}
    for site in sites:
        by_use[site.category] = by_use.get(site.category, 0) + site.bytes
    ways = [(n_bytes, advice[use]) for use, n_bytes in by_use.items() if use in advice]
    ways.extend(
        (site.bytes, f"{site_line(site.location)}: check whether all of it is needed at once")
        for site in sites
        if site.category == "unknown" and site.location.file is not None
    )

    if failure.reason == "outside":
        outside = "outside PyTorch: check with `nvidia-smi` what else uses the device"
        ways.append((failure.outside_bytes or 0, outside))
    if line.file:
        ways.append((failure.requested_bytes, f"{line.place}: compute it in chunks"))

    setting = fitting_setting(memory, failure) if failure.unreleasable_bytes else None
    first = ""
    if setting is not None and failure.fits_if_compacted:
        # The allocation is known to fit with it, whereas the other ways may free too little.
        first = f"{setting[0].upper()}{setting[1:]}. "
    elif setting is not None:
        ways.append((failure.unreleasable_bytes, f"fragmented: {setting}"))

    if not ways:
        return first.rstrip() or (
            "Use a smaller batch, and record the history with stacks to see what uses memory."
        )

    ways.sort(key=lambda way: -way[0])
    named = "; ".join(f"{format_bytes(n_bytes)} {way}" for n_bytes, way in ways[:MAX_LINES])
    return f"{first}{'Otherwise, by' if first else 'By'} bytes: {named}."


def describe_flushes(memory: DeviceMemory, full: Rows, again_bytes: int) -> str:
    """Describe how often requests made the allocator release its cache and reserve it again.

    Args:
        full: Such flushes, as places in :attr:`DeviceMemory.flushes`.
        again_bytes: Bytes that it then reserved again.
    """
    flushes = memory.flushes
    threshold = _threshold(memory)
    limit = "" if threshold is None else f" within `garbage_collection_threshold` ({threshold})"
    return (
        f"{memory.label}: {format_times(len(full))} a request did not fit{limit}, and the "
        f"allocator released {format_bytes(int(flushes.n_bytes[full].sum()))} of cached memory to "
        f"the driver in {format_count(int(flushes.n_calls[full].sum()))} calls that synchronize "
        f"with the device. It then reserved {format_bytes(again_bytes)} of it again."
    )


def suggest_flush_fix(memory: DeviceMemory) -> str:
    """Return the fix for such flushes."""
    if _threshold(memory) is not None:
        return (
            "Raise `garbage_collection_threshold` in `PYTORCH_CUDA_ALLOC_CONF`, or remove it: the "
            "allocator frees its cache anyway before an allocation fails."
        )
    setting = ""
    if not memory.settings.expandable:
        setting = f", or set `{expandable_setting(memory.settings)}` to reuse free memory"
    return f"The device is nearly full: use a smaller batch, retain fewer tensors{setting}."


def _threshold(memory: DeviceMemory) -> float | None:
    """Return ``garbage_collection_threshold``, if the program sets it."""
    value = memory.snapshot.settings.get("garbage_collection_threshold")
    return float(value) if isinstance(value, int | float) and value > 0 else None
