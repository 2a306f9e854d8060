"""A snapshot's figures on one device, a line each."""

from collections.abc import Iterator
from typing import Final

from profkit.engine.wording import counted
from profkit.model.device_bytes import DeviceBytes
from profkit.model.memory_summary import SnapshotDevice
from profkit.units import format_bytes

_MAIN_SHARE: Final = 0.5
"""A line is named if it causes at least this much of the fragmentation."""
_MIN_ROUNDING_SHARE: Final = 0.01
"""Less rounding, as a share of active memory, occurs with any allocator."""


def describe_device(device: SnapshotDevice, *, everything: bool) -> Iterator[str]:
    """Yield the figures of one device, a line each.

    Args:
        everything: Whether to include regions, all lines that cause fragmentation, and little
            rounding.
    """
    name = device.device
    history = "no history"
    if device.n_trace_events:
        history = f"{counted(device.n_trace_events, 'entry', 'entries')} of history"
    yield (
        f"{name}: {format_bytes(device.reserved_bytes)} reserved in "
        f"{counted(device.n_segments, 'segment')}, {format_bytes(device.active_bytes)} active, "
        f"largest free block {format_bytes(device.largest_free_block_bytes)}, {history}"
    )

    if device.inactive_bytes:
        yield f"{name}: {_free(device, everything=everything)}"
    if device.rounding_bytes and (
        everything or device.rounding_bytes >= _MIN_ROUNDING_SHARE * device.active_bytes
    ):
        yield (
            f"{name}: {format_bytes(device.rounding_bytes)} of active memory is rounding: blocks "
            "are larger than the requested sizes"
        )

    if device.peak_pending_free_bytes:
        pending = format_bytes(device.active_bytes - device.allocated_bytes)
        yield (
            f"{name}: up to {format_bytes(device.peak_pending_free_bytes)} freed but still in use "
            f"by another stream (record_stream), {pending} at the end; this is no leak"
        )
    if device.driver is not None:
        yield f"{name}: {_owners(device.driver)}"
    if everything:
        yield from _verbose(device)


def _free(device: SnapshotDevice, *, everything: bool) -> str:
    """Say how much free memory can be released, and which line prevents more."""
    private = ""
    if device.private_free_bytes:
        private = f", {format_bytes(device.private_free_bytes)} in private pools"

    by = ""
    first = next(iter(device.fragmentation_sites), None)
    # With everything, all of these lines follow below.
    if first is not None and first.location.file is not None and not everything:
        is_main = first.unreleasable_bytes >= _MAIN_SHARE * device.unreleasable_bytes
        by = f", mostly of {first.location.place}" if is_main else ""
    return (
        f"free memory: {format_bytes(device.releasable_bytes)} can be released to the driver, "
        f"{format_bytes(device.unreleasable_bytes)} share segments with live blocks{by}{private}"
    )


def _owners(driver: DeviceBytes) -> str:
    """Divide the device's memory at the snapshot among its owners, as the driver reports it."""
    parts = [f"{format_bytes(driver.torch_bytes)} PyTorch"]
    program_bytes, others_bytes = driver.non_torch_bytes, driver.others_bytes
    if program_bytes is None or others_bytes is None:
        parts.append(f"{format_bytes(driver.outside_torch_bytes)} outside PyTorch")
    else:
        parts.append(f"{format_bytes(program_bytes)} this program outside PyTorch")
        parts.append(f"{format_bytes(others_bytes)} other programs")
    return (
        f"of the device's {format_bytes(driver.total_bytes)}: {', '.join(parts)}, "
        f"{format_bytes(driver.free_bytes)} free"
    )


def _verbose(device: SnapshotDevice) -> Iterator[str]:
    for site in device.fragmentation_sites:
        unreleasable = format_bytes(site.unreleasable_bytes)
        blocks = f"{counted(site.n, 'block')} of {format_bytes(site.bytes)}"
        yield f"{site.location.place}: {unreleasable} unreleasable because of {blocks}"
    for region in device.regions:
        net = f"{format_bytes(region.net_active_bytes)} more at the end"
        if region.net_active_bytes < 0:
            net = f"{format_bytes(-region.net_active_bytes)} less at the end"
        yield (
            f"region {region.name}: {counted(region.n, 'entry', 'entries')}, peak "
            f"{format_bytes(region.peak_active_bytes)} active, {net}"
        )
