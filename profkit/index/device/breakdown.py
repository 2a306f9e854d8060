"""Where the time of the steps went: parts that exclude each other and add up exactly."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from profkit.index.device.idle import HOST_CAUSES, IdleByCause
from profkit.index.device.streams import DeviceActivity
from profkit.index.host.steps import data_waits
from profkit.index.intervals import (
    EMPTY,
    Intervals,
    covered_by,
    covered_within,
    intersect,
    subtract,
    unite,
)
from profkit.index.runtime_calls import names_matching
from profkit.model.events import Category, EventTable, Int64s
from profkit.model.report import Breakdown, StepPart, TimePart
from profkit.model.torch_names import BACKWARD, FRAMING, OPTIMIZER


def partition_time(window: Intervals, parts: Mapping[str, Intervals]) -> dict[str, Intervals]:
    """Share a window's time out among parts, so that they exclude each other and fill it.

    Args:
        window: The time of all steps, or of the whole recording.
        parts: Time by kind, from :func:`device_parts` or :func:`host_parts`. Where two overlap the
            first has it; what none has goes to the last.
    """
    rest = window
    found: dict[str, Intervals] = {}
    for kind, covered in parts.items():
        found[kind] = intersect(rest, covered)
        rest = subtract(rest, covered)
    left_over = "idle-host" if "compute" in parts else "python"
    found[left_over] = unite(found.get(left_over, EMPTY), rest)
    return found


def breakdown(window: Intervals, n_steps: int, parts: Mapping[str, Intervals]) -> Breakdown:
    """Measure the parts of a window.

    Args:
        window: The time of all steps, or of the whole recording.
        n_steps: How many steps that is; 0 for a recording without steps.
        parts: What :func:`partition_time` gave.
    """
    lengths = {kind: covered.total_ns for kind, covered in parts.items()}
    total_ns = window.total_ns
    return Breakdown(
        n_steps=n_steps,
        total_ns=total_ns,
        per_step_ns=_per_step(total_ns, n_steps),
        on_device="compute" in parts,
        parts=tuple(
            TimePart(kind, ns, _per_step(ns, n_steps), ns / total_ns)
            for kind, ns in sorted(lengths.items(), key=_work_then_idle)
            if ns
        ),
    )


def parts_of_steps(
    starts_ns: Int64s, ends_ns: Int64s, parts: Mapping[str, Intervals]
) -> list[tuple[StepPart, ...]]:
    """The parts of each step, in the order of :attr:`Breakdown.parts`.

    Args:
        starts_ns: Where each step begins.
        ends_ns: Where it ends.
        parts: What :func:`partition_time` gave for all of them.
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


def device_parts(
    devices: Sequence[DeviceActivity],
    idle: Sequence[IdleByCause],
    host: Mapping[str, Intervals],
) -> dict[str, Intervals]:
    """Time by what the devices did, and by why none of them worked.

    Before the first work of every device and after its last, the cause is what the host did.

    Args:
        devices: Every device.
        idle: Its idle time by cause, in the same order.
        host: What :func:`~profkit.index.device.idle.host_activity` found.
    """
    busy = _all(device.busy for device in devices)
    parts = {
        "compute": _all(device.compute for device in devices),
        "communication": _all(device.communication for device in devices),
        "copy": busy,
    }
    by_cause = [dict(each.items()) for each in idle]
    spans = _all(unite(device.busy, device.idle) for device in devices)
    for cause in (*HOST_CAUSES, "host", "launch", "device", "unknown"):
        within = _all(causes[cause] for causes in by_cause)
        outside = subtract(host.get(cause, EMPTY), spans)
        parts[f"idle-{cause}"] = subtract(unite(within, outside), busy)
    return parts


def host_parts(events: EventTable) -> dict[str, Intervals]:
    """Time by what the host did, for a recording without devices.

    Source: ``torch/optim/optimizer.py`` names its annotations ``Optimizer.step#…`` and
    ``Optimizer.zero_grad#…``; ``torch/csrc/autograd/engine.cpp`` names what it runs
    ``autograd::engine::evaluate_function: …``; before that the operators of the backward pass
    were named ``…Backward``.
    """
    framing = names_matching(events.names, FRAMING)[events.name]
    is_op = (events.category == Category.OP) & ~framing
    named = np.isin(events.category, (Category.OP, Category.ANNOTATION))
    optimizer = named & names_matching(events.names, OPTIMIZER)[events.name]
    backward = is_op & names_matching(events.names, BACKWARD)[events.name]
    return {
        "data": covered_by(events, data_waits(events)),
        "optimizer": covered_by(events, np.flatnonzero(optimizer)),
        "backward": covered_by(events, np.flatnonzero(backward)),
        "operators": covered_by(events, np.flatnonzero(is_op)),
    }


def _all(every: Iterator[Intervals]) -> Intervals:
    together = EMPTY
    for one in every:
        together = unite(together, one)
    return together


def _per_step(ns: int, n_steps: int) -> int | None:
    return round(ns / n_steps) if n_steps else None


def _work_then_idle(part: tuple[str, int]) -> tuple[bool, int, str]:
    kind, ns = part
    return kind.startswith("idle-") or kind in {"data", "python"}, -ns, kind
