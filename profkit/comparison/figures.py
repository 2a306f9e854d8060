"""The figures of two reports, side by side."""

from collections.abc import Iterator, Mapping
from typing import Final

from profkit.model.difference import Figure, Unit
from profkit.model.report import Report, Summary

_SNAPSHOT: Final = (
    "active_bytes", "allocated_bytes", "reserved_bytes", "inactive_bytes",
    "largest_free_block_bytes", "peak_active_bytes", "peak_reserved_bytes", "n_segments",
    "n_blocks",
)  # fmt: skip
_DEVICE: Final = (
    "busy_ns", "idle_ns", "compute_ns", "communication_ns", "memcpy_ns", "n_kernels", "n_memcpy",
)  # fmt: skip
_STEP: Final = ("gpu_busy_ns", "gpu_idle_ns", "data_wait_ns", "sync_ns")
_MONITORED: Final = (
    "host_rss_bytes", "tensor_bytes", "graph_bytes", "allocated_bytes", "peak_bytes",
    "reserved_bytes", "worker_bytes",
)  # fmt: skip

Key = tuple[str, str | None]
"""A figure's name, and its device or None."""


def compare_figures(before: Report, after: Report) -> tuple[Figure, ...]:
    """Return the figures of two reports; figures that are 0 or unknown in both are left out."""
    per_step = bool(before.summary.steps and after.summary.steps)
    names = renamed_devices(before, after)

    old = {
        (name, names.get(device or "", device)): value
        for (name, device), value in _figures(before, per_step=per_step)
    }
    new = dict(_figures(after, per_step=per_step))

    return tuple(
        Figure(name, device, _unit(name), old.get((name, device)), new.get((name, device)))
        # In the order of the newer report; figures that only the older one has follow.
        for name, device in {**new, **old}
        if old.get((name, device)) or new.get((name, device))
    )


def renamed_devices(before: Report, after: Report) -> Mapping[str, str]:
    """Return the new name of a device, by the old one.

    Two ranks use one device each, under different names: these are compared with each other.
    """
    old, new = _devices(before.summary), _devices(after.summary)
    return dict(zip(old, new, strict=True)) if len(old) == len(new) == 1 and old != new else {}


def _devices(summary: Summary) -> tuple[str, ...]:
    if summary.memory is not None and summary.memory.devices:
        return tuple(device.device for device in summary.memory.devices)
    return tuple(device.device for device in summary.devices)


def _unit(name: str) -> Unit:
    whole = name.removesuffix("_per_step")
    if whole.endswith("_bytes"):
        return "bytes"
    return "ns" if whole.endswith("_ns") else "count"


def _figures(report: Report, *, per_step: bool) -> Iterator[tuple[Key, int | None]]:
    summary = report.summary
    yield from _of_steps(summary, per_step=per_step)
    yield from _of_ranks(report, per_step=per_step)
    yield from _of_devices(summary, per_step=per_step)
    yield from _of_memory(summary)


def _of_steps(summary: Summary, *, per_step: bool) -> Iterator[tuple[Key, int | None]]:
    steps = summary.steps
    if not per_step:
        if summary.window_ns:
            yield ("window_ns", None), summary.window_ns
        return

    yield ("step_ns", None), round(sum(step.time_ns for step in steps) / len(steps))
    for name in _STEP:
        lengths = [getattr(step, name) for step in steps]
        if None not in lengths:
            yield (f"{name}_per_step", None), round(sum(lengths) / len(steps))


def _of_ranks(report: Report, *, per_step: bool) -> Iterator[tuple[Key, int | None]]:
    """Yield the means over the ranks of a job."""
    ranks, ending = report.ranks, "_per_step" if per_step else ""
    if ranks:
        yield ("n_ranks", None), len(ranks)
        for name in ("collective_wait_ns", "transfer_ns"):
            yield (name + ending, None), round(sum(getattr(r, name) for r in ranks) / len(ranks))


def _of_devices(summary: Summary, *, per_step: bool) -> Iterator[tuple[Key, int | None]]:
    """Yield the work of each device: per step in the time of the steps, or without steps in all."""
    if not per_step:
        for device in summary.devices:
            for name in _DEVICE:
                yield (name, device.device), getattr(device, name)
        return

    for device in summary.devices:
        if device.in_steps is not None:
            for name in _DEVICE:
                mean = round(getattr(device.in_steps, name) / len(summary.steps))
                yield (f"{name}_per_step", device.device), mean


def _of_memory(summary: Summary) -> Iterator[tuple[Key, int | None]]:
    memory = summary.memory
    if memory is None:
        return

    for device in memory.devices:
        for name in _SNAPSHOT:
            yield (name, device.device), getattr(device, name)
    for peak in memory.peak:
        yield ("peak_bytes", peak.device), peak.bytes

    if memory.unfreed_bytes is not None:
        yield ("unfreed_bytes", None), memory.unfreed_bytes
    for name in _MONITORED:
        # Not every figure is sampled at each step: the last sample counts.
        samples = [n for step in memory.steps if (n := getattr(step, name)) is not None]
        yield (name, None), samples[-1] if samples else None
