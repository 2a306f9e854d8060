"""What a snapshot holds of one device, a line each."""

from collections.abc import Iterator
from typing import Final

from profkit.engine.wording import counted
from profkit.model.memory_summary import SnapshotDevice
from profkit.units import format_bytes

_MOST: Final = 0.5
_TELLING_SHARE: Final = 0.01
"""Rounding below this share of what is in use is the price of any allocator."""


def device_facts(device: SnapshotDevice, *, everything: bool) -> Iterator[str]:
    """What was counted of one device's memory, a line each.

    Args:
        everything: Whether to tell also of regions and of what holds free memory in place.
    """
    name = device.device
    history = "no history"
    if device.n_trace_events:
        history = f"{counted(device.n_trace_events, 'entry', 'entries')} of history"
    yield (
        f"{name}: {format_bytes(device.reserved_bytes)} reserved in "
        f"{counted(device.n_segments, 'segment')}, {format_bytes(device.active_bytes)} in use, "
        f"largest free block {format_bytes(device.largest_free_block_bytes)}, {history}"
    )
    if device.inactive_bytes:
        yield f"{name}: {_free(device, everything=everything)}"
    if device.rounding_bytes and (
        everything or device.rounding_bytes >= _TELLING_SHARE * device.active_bytes
    ):
        yield (
            f"{name}: {format_bytes(device.rounding_bytes)} of what is in use is rounding: blocks "
            f"are longer than what was asked for"
        )
    if device.peak_pending_free_bytes:
        waiting = format_bytes(device.active_bytes - device.allocated_bytes)
        yield (
            f"{name}: {format_bytes(device.peak_pending_free_bytes)} at most were freed and still "
            f"waited for another stream (record_stream), {waiting} in the end; they are no leak"
        )
    if device.driver is not None:
        yield f"{name}: {_owners(device)}"
    if everything:
        yield from _verbose(device)


def _free(device: SnapshotDevice, *, everything: bool) -> str:
    """Who could give the free memory back, and the line that keeps it from that."""
    private = ""
    if device.private_free_bytes:
        private = f", {format_bytes(device.private_free_bytes)} belong to private pools"
    by = ""
    first = next(iter(device.fragmentation_sites), None)
    # All of them are told below where everything is.
    if first is not None and first.location.file is not None and not everything:
        much = first.unreleasable_bytes >= _MOST * device.unreleasable_bytes
        by = f", most of it by {first.location.place}" if much else ""
    return (
        f"of the free memory {format_bytes(device.releasable_bytes)} can go back to the driver, "
        f"{format_bytes(device.unreleasable_bytes)} are held in place by blocks in use{by}{private}"
    )


def _owners(device: SnapshotDevice) -> str:
    """Whose the device's memory was when the snapshot was taken, as the driver said."""
    driver = device.driver
    if driver is None:
        return ""
    parts = [f"{format_bytes(driver.torch_bytes)} PyTorch's"]
    own, others = driver.non_torch_bytes, driver.others_bytes
    if own is not None:
        parts.append(f"{format_bytes(own)} this program's outside PyTorch")
    if others is not None:
        parts.append(f"{format_bytes(others)} other programs'")
    if own is None or others is None:
        # What is known of one alone is part of what is known of both.
        parts = [parts[0], f"{format_bytes(driver.outside_torch_bytes)} outside PyTorch"]
    return (
        f"of the device's {format_bytes(driver.total_bytes)} {', '.join(parts)}, "
        f"{format_bytes(driver.free_bytes)} free"
    )


def _verbose(device: SnapshotDevice) -> Iterator[str]:
    for pin in device.fragmentation_sites:
        yield (
            f"{pin.location.place} holds {format_bytes(pin.unreleasable_bytes)} in place by "
            f"{counted(pin.n, 'block')} of {format_bytes(pin.bytes)}"
        )
    for region in device.regions:
        left = f"left {format_bytes(region.net_active_bytes)} behind"
        if region.net_active_bytes < 0:
            left = f"freed {format_bytes(-region.net_active_bytes)} more than they took"
        yield (
            f"region {region.name}: {counted(region.n, 'entry', 'entries')}, at most "
            f"{format_bytes(region.peak_active_bytes)} in use, {left}"
        )
