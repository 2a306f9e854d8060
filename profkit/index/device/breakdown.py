"""Where the steps' time was spent: disjoint parts that add up exactly."""

from collections.abc import Mapping, Sequence

import numpy as np

from profkit.index.device.idle import HOST_CAUSES, IdleByCause
from profkit.index.device.streams import DeviceActivity
from profkit.index.host.steps import data_waits, divide_by_steps, program_ops
from profkit.index.intervals import (
    EMPTY,
    Intervals,
    covered_by,
    covered_within,
    intersect,
    subtract,
    union,
    unite,
    unite_all,
)
from profkit.index.runtime_calls import rows_named
from profkit.model.events import Category, EventTable, Int64s
from profkit.model.step_summary import IDLE, Breakdown, StepPart, TimePart, is_wait
from profkit.model.torch_names import BACKWARD, OPTIMIZER


def partition_time(window: Intervals, parts: Mapping[str, Intervals]) -> dict[str, Intervals]:
    """Partition a window's time into disjoint parts that fill it.

    Args:
        window: The time of all steps, or of the whole recording.
        parts: Time by kind, from :func:`split_device` or :func:`split_host`. Overlaps
            count for the first kind, uncovered time for the last.
    """
    remaining = window
    time_by_kind: dict[str, Intervals] = {}
    for kind, covered in parts.items():
        time_by_kind[kind] = intersect(remaining, covered)
        remaining = subtract(remaining, covered)

    remainder = f"{IDLE}host" if "compute" in parts else "python"
    time_by_kind[remainder] = unite(time_by_kind.get(remainder, EMPTY), remaining)
    return time_by_kind


def sum_parts(
    window: Intervals,
    n_steps: int,
    parts: Mapping[str, Intervals],
    *,
    host_per_step_ns: int | None = None,
) -> Breakdown:
    """Measure the parts of a window.

    Args:
        n_steps: Number of steps; 0 for a recording without steps.
        parts: Result of :func:`partition_time` for this window.
        host_per_step_ns: Host part of the window per step, or None without steps.
    """
    lengths = {kind: covered.total_ns for kind, covered in parts.items()}
    total_ns = window.total_ns
    return Breakdown(
        n_steps=n_steps,
        total_ns=total_ns,
        per_step_ns=divide_by_steps(total_ns, n_steps),
        on_device="compute" in parts,
        parts=build_parts(lengths, total_ns, n_steps),
        host_per_step_ns=host_per_step_ns,
    )


def build_parts(ns_by_kind: Mapping[str, int], total_ns: int, n_steps: int) -> tuple[TimePart, ...]:
    """Build the parts of a breakdown from the time of each kind, in the order of its parts.

    Args:
        total_ns: Sum of the steps' times, or duration of the whole recording.
        n_steps: Number of steps; 0 for a recording without steps.
    """
    return tuple(
        TimePart(kind, ns, divide_by_steps(ns, n_steps), ns / total_ns)
        for kind, ns in sorted(ns_by_kind.items(), key=_work_then_idle)
        if ns
    )


def split_by_step(
    starts_ns: Int64s, ends_ns: Int64s, parts: Mapping[str, Intervals]
) -> list[tuple[StepPart, ...]]:
    """Return the parts of each step, in the order of :attr:`Breakdown.parts`.

    Args:
        parts: Result of :func:`partition_time` for all steps.
    """
    by_kind = {
        kind: covered_within(covered, starts_ns, ends_ns).tolist()
        for kind, covered in parts.items()
    }
    order = sorted(by_kind, key=lambda kind: _work_then_idle((kind, sum(by_kind[kind]))))
    return [
        tuple(StepPart(kind, by_kind[kind][i]) for kind in order if by_kind[kind][i])
        for i in range(len(starts_ns))
    ]


def split_device(
    devices: Sequence[DeviceActivity],
    idle: Sequence[IdleByCause],
    host: Mapping[str, Intervals],
    unrecorded: Intervals = EMPTY,
) -> dict[str, Intervals]:
    """Split the time by device activity, and idle time by its cause.

    Before the first and after the last work of all devices, the host's activity is the cause.

    Args:
        idle: Idle time by cause of each device, in the same order.
        host: Result of :func:`~profkit.index.device.idle.host_activity`.
        unrecorded: Time in which a device worked on something that is not in the recording.
    """
    busy = unite_all(device.busy for device in devices)
    parts = {
        "compute": unite_all(device.compute for device in devices),
        "communication": unite_all(device.communication for device in devices),
        "copy": busy,
        "unrecorded": unrecorded,
    }

    # Outside of every device's span nothing waits for a launch, so only the host's causes apply.
    by_cause = [dict(device_idle.items()) for device_idle in idle]
    spans = unite_all(unite(device.busy, device.idle) for device in devices)
    for cause in (*HOST_CAUSES, "host", "launch", "device", "unknown"):
        within = unite_all(causes[cause] for causes in by_cause)
        outside = subtract(host.get(cause, EMPTY), spans)
        parts[f"{IDLE}{cause}"] = subtract(unite(within, outside), busy)
    return parts


def split_host(events: EventTable) -> dict[str, Intervals]:
    """Split the time by host activity, for a recording without devices."""
    is_op = program_ops(events)
    optimizer = rows_named(events, OPTIMIZER, Category.OP, Category.ANNOTATION)
    backward = is_op & rows_named(events, BACKWARD, Category.OP)
    in_backward = covered_by(events, np.flatnonzero(backward))

    return {
        "data": covered_by(events, data_waits(events)),
        "backward": in_backward,
        "optimizer": _exclude_closures(covered_by(events, np.flatnonzero(optimizer)), in_backward),
        "operators": covered_by(events, np.flatnonzero(is_op)),
    }


def _exclude_closures(optimizer: Intervals, backward: Intervals) -> Intervals:
    """Exclude the time of optimizers up to the last backward pass within each.

    An optimizer with a closure, such as L-BFGS, calls the model: until then it is the model's time.
    """
    if not len(backward.ends_ns):
        return optimizer

    # The last backward pass that ends within each optimizer's time.
    last = np.searchsorted(backward.ends_ns, optimizer.ends_ns, side="right") - 1
    closed_ns = np.where(last >= 0, backward.ends_ns[np.maximum(last, 0)], 0)
    return union(np.maximum(optimizer.starts_ns, closed_ns), optimizer.ends_ns)


def _work_then_idle(part: tuple[str, int]) -> tuple[bool, int, str]:
    kind, ns = part
    return is_wait(kind), -ns, kind
