"""What the tab draws of a recording beside its report: modules, extremes, memory over time."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.index.host.nesting import rows_open_at, self_ns
from profkit.index.host.source import NO_FRAME
from profkit.index.trace_memory.live_bytes import device_label
from profkit.integrations.tensorboard.torch_tb_profiler_errors import Misreading
from profkit.model.events import MISSING, NO_ROW, Category, Int32s, Int64s, Mask, Rows
from profkit.model.report import KernelSummary, Report
from profkit.model.torch_names import MODULE_PREFIX
from profkit.present.headline import (
    breakdown_title,
    cost_text,
    origin,
    part_label,
    unchecked_by_reason,
)

_MOST: Final = 1_000
"""Modules and operators that are listed; a model of a thousand layers is shown whole."""
_LARGEST: Final = 200
_POINTS: Final = 600
"""As many as a wide screen has pixels for."""


@dataclass(frozen=True)
class ModuleTime:
    """One ``nn.Module``.

    Attributes:
        name: As torch names it, such as ``Linear_3``.
        parent: The module that called it first, or None at the top and where calls are not kept.
        n_calls: Its calls in the window, or None where they are not kept.
        total_ns: Their lengths on the host together, or None likewise.
        n_ops: Calls of operators of which it is the innermost module.
        op_ns: Their time on the host, each without the operators within it.
        device_ns: Sum of the lengths of the device work of which it is the innermost module.
    """

    name: str
    parent: str | None
    n_calls: int | None
    total_ns: int | None
    n_ops: int
    op_ns: int
    device_ns: int


@dataclass(frozen=True)
class KernelSpread:
    """The shortest and the longest call of a kernel.

    Attributes:
        name: The kernel's name.
        min_ns: The shortest.
        max_ns: The longest.
    """

    name: str
    min_ns: int
    max_ns: int


@dataclass(frozen=True)
class RunMemorySeries:
    """A device's memory over the window, from the trace's allocations and frees.

    Each point is the most of a stretch of equally many of them.

    Attributes:
        device: ``cpu``, ``cuda:0``.
        at_ns: When each stretch ends, from the trace's start.
        allocated_bytes: The most that was allocated in it.
        reserved_bytes: The most that was reserved in it; empty where the recording does not tell.
    """

    device: str
    at_ns: tuple[int, ...]
    allocated_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...]


@dataclass(frozen=True)
class OpMemory:
    """What one operator allocated on a device, as the innermost operator at that time.

    Attributes:
        op: The operator.
        device: The device.
        n_allocations: Allocations.
        allocated_bytes: Their bytes together.
        net_bytes: The same without what was freed within such operators.
    """

    op: str
    device: str
    n_allocations: int
    allocated_bytes: int
    net_bytes: int


@dataclass(frozen=True)
class LargestBlock:
    """One allocation.

    Attributes:
        op: The innermost operator that was under way, or None.
        device: The device.
        n_bytes: Its bytes.
        at_ns: When, from the trace's start.
        held_ns: Until it was freed; None where that is not within the recording.
    """

    op: str | None
    device: str
    n_bytes: int
    at_ns: int
    held_ns: int | None


@dataclass(frozen=True)
class Words:
    """What profkit says of a report in words, the same in every format.

    Attributes:
        whole: What the breakdown is of.
        parts: What its parts are called, by kind.
        costs: What each finding costs, in the order of the report.
        unchecked: What could not be checked: each reason with what to do, and its rules.
        origin: Where the report comes from.
    """

    whole: str
    parts: dict[str, str]
    costs: tuple[str, ...]
    unchecked: tuple[tuple[str, str], ...]
    origin: tuple[str, ...]


def words(report: Report) -> Words:
    """What is said of a report."""
    breakdown = report.summary.breakdown
    kinds = [part.kind for part in breakdown.parts] if breakdown is not None else []
    return Words(
        whole=breakdown_title(report),
        parts={kind: part_label(kind) for kind in kinds},
        costs=tuple(cost_text(report, finding) for finding in report.findings),
        unchecked=tuple(unchecked_by_reason(report)),
        origin=tuple(origin(report)),
    )


@dataclass(frozen=True)
class Views:
    """All of it.

    Attributes:
        words: What is said of the report.
        modules: Modules, by time on devices, then on the host, then name.
        kernels: The kernels of the report, in its order.
        memory: A course a device.
        op_memory: Operators by the bytes that they allocated.
        allocations: The largest allocations.
        misreadings: What the tab "PyTorch Profiler" shows wrongly of this recording.
    """

    words: Words
    modules: tuple[ModuleTime, ...] = ()
    kernels: tuple[KernelSpread, ...] = ()
    memory: tuple[RunMemorySeries, ...] = ()
    op_memory: tuple[OpMemory, ...] = ()
    allocations: tuple[LargestBlock, ...] = ()
    misreadings: tuple[Misreading, ...] = ()


def modules(ctx: Context) -> tuple[ModuleTime, ...]:
    """Every module's time."""
    events, source, launches = ctx.events, ctx.source, ctx.launches
    n = len(source.modules)
    if not n:
        return ()
    is_op: Mask = events.category == Category.OP
    ops = np.flatnonzero(is_op & (source.module != NO_FRAME))
    op_ns = _sums(n, source.module[ops], self_ns(events, ctx.tree, is_op)[ops])
    n_ops = np.bincount(source.module[ops], minlength=n)
    origin = np.where(launches.op != NO_ROW, launches.op, launches.launch)
    known = origin != NO_ROW
    known[known] = source.module[origin[known]] != NO_FRAME
    device_ns = _sums(n, source.module[origin[known]], events.dur_ns[launches.work[known]])
    calls = _calls(ctx)
    found = [
        ModuleTime(
            name=name,
            parent=calls[name][2] if name in calls else None,
            n_calls=calls[name][0] if name in calls else None,
            total_ns=calls[name][1] if name in calls else None,
            n_ops=int(n_ops[number]),
            op_ns=int(op_ns[number]),
            device_ns=int(device_ns[number]),
        )
        for number, name in enumerate(source.modules)
    ]
    return tuple(sorted(found, key=lambda m: (-m.device_ns, -m.op_ns, m.name)))[:_MOST]


def _calls(ctx: Context) -> dict[str, tuple[int, int, str | None]]:
    """By module: calls, their lengths together, and the module that called it first."""
    events = ctx.events
    of_module = np.fromiter((name.startswith(MODULE_PREFIX) for name in events.names), np.bool_)
    is_call: Mask = (events.category == Category.PYTHON) & of_module[events.name]
    rows = np.flatnonzero(is_call)
    above = ctx.tree.enclosing(is_call)[rows]
    found: dict[str, tuple[int, int, str | None]] = {}
    order = np.argsort(events.ts_ns[rows], kind="stable")
    for row, caller in zip(rows[order].tolist(), above[order].tolist(), strict=True):
        name = events.name_of(row).removeprefix(MODULE_PREFIX)
        first = events.name_of(caller).removeprefix(MODULE_PREFIX) if caller != NO_ROW else None
        n_calls, total_ns, parent = found.get(name, (0, 0, first))
        found[name] = (n_calls + 1, total_ns + int(events.dur_ns[row]), parent)
    return found


def spreads(ctx: Context, kernels: tuple[KernelSummary, ...]) -> tuple[KernelSpread, ...]:
    """The shortest and longest call of some kernels.

    Args:
        kernels: Kernels of its report.
    """
    events = ctx.events
    rows = events.rows_of(Category.KERNEL)
    shortest = np.full(len(events.names), np.iinfo(np.int64).max, dtype=np.int64)
    longest = np.zeros(len(events.names), dtype=np.int64)
    np.minimum.at(shortest, events.name[rows], events.dur_ns[rows])
    np.maximum.at(longest, events.name[rows], events.dur_ns[rows])
    numbers = {events.names[number]: number for number in np.unique(events.name[rows]).tolist()}
    return tuple(
        KernelSpread(k.name, int(shortest[numbers[k.name]]), int(longest[numbers[k.name]]))
        for k in kernels
    )


def memory_courses(ctx: Context) -> tuple[RunMemorySeries, ...]:
    """The memory of every device over the window."""
    table = ctx.trace.memory
    return tuple(
        _course(ctx, device, rows[table.total_allocated[rows] != MISSING])
        for device, rows in _by_device(ctx)
        if (table.total_allocated[rows] != MISSING).any()
    )


def _course(ctx: Context, device: str, rows: Rows) -> RunMemorySeries:
    table = ctx.trace.memory
    starts = np.unique(
        np.linspace(0, len(rows), min(_POINTS, len(rows)), endpoint=False, dtype=int)
    )
    ends = np.append(starts[1:], len(rows)) - 1
    reserved = table.total_reserved[rows]
    tells = bool((reserved > 0).any())
    return RunMemorySeries(
        device=device,
        at_ns=tuple(table.ts_ns[rows[ends]].tolist()),
        allocated_bytes=tuple(np.maximum.reduceat(table.total_allocated[rows], starts).tolist()),
        reserved_bytes=tuple(np.maximum.reduceat(reserved, starts).tolist()) if tells else (),
    )


def op_memory(ctx: Context) -> tuple[OpMemory, ...]:
    """What operators allocated."""
    table, events = ctx.trace.memory, ctx.events
    found = []
    for device, rows in _by_device(ctx):
        inside = rows_open_at(events, ctx.tree, table.lane[rows], table.ts_ns[rows])
        op = np.where(inside != NO_ROW, ctx.innermost_op[inside], NO_ROW)
        known = op != NO_ROW
        n_bytes, name = table.n_bytes[rows[known]], events.name[op[known]]
        size = len(events.names)
        counts = np.bincount(name[n_bytes > 0], minlength=size)
        taken = _sums(size, name[n_bytes > 0], n_bytes[n_bytes > 0])
        net = _sums(size, name, n_bytes)
        found += [
            OpMemory(events.names[i], device, int(counts[i]), int(taken[i]), int(net[i]))
            for i in np.unique(name).tolist()
        ]
    return tuple(sorted(found, key=lambda m: (-m.allocated_bytes, m.op, m.device)))[:_MOST]


def largest(ctx: Context) -> tuple[LargestBlock, ...]:
    """The largest allocations of the window, of equal ones the earliest first."""
    table, events, pairs = ctx.trace.memory, ctx.events, ctx.allocations
    chosen = np.lexsort((pairs.alloc, -pairs.n_bytes))[:_LARGEST]
    rows, frees = pairs.alloc[chosen], pairs.free[chosen]
    inside = rows_open_at(events, ctx.tree, table.lane[rows], table.ts_ns[rows])
    op = np.where(inside != NO_ROW, ctx.innermost_op[inside], NO_ROW)
    return tuple(
        LargestBlock(
            op=events.name_of(op[place]) if op[place] != NO_ROW else None,
            device=device_label(int(table.device_type[row]), int(table.device[row])),
            n_bytes=int(table.n_bytes[row]),
            at_ns=int(table.ts_ns[row]),
            held_ns=int(table.ts_ns[free] - table.ts_ns[row]) if free >= 0 else None,
        )
        for place, (row, free) in enumerate(zip(rows.tolist(), frees.tolist(), strict=True))
    )


def _by_device(ctx: Context) -> list[tuple[str, Rows]]:
    """The rows of a trace's memory events by device, each in their order."""
    table = ctx.trace.memory
    pairs = sorted({*zip(table.device_type.tolist(), table.device.tolist(), strict=True)})
    return [
        (
            device_label(kind, number),
            np.flatnonzero((table.device_type == kind) & (table.device == number)),
        )
        for kind, number in pairs
    ]


def _sums(n: int, keys: Int32s, weights: Int64s) -> Int64s:
    """Sum of weights by key, exactly. Shape ``(n,)``."""
    sums = np.zeros(n, dtype=np.int64)
    np.add.at(sums, keys, weights)
    return sums
