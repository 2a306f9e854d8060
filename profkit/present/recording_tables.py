"""Tables computed from a recording beyond its report: modules, kernels, allocations."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.index.distinct import distinct
from profkit.index.host.source import NO_FRAME
from profkit.index.sums import sum_by_key
from profkit.index.trace_memory.live_bytes import device_label
from profkit.model.events import NO_ROW, Category, Int32s, Mask, Rows
from profkit.model.torch_names import MODULE_PREFIX
from profkit.model.work_summary import KernelSummary
from profkit.present.tables.columns import CALLS
from profkit.present.tables.definition import Column, Table

_MAX_ROWS: Final = 1_000
"""Enough for every module of a model with a thousand layers."""
_MAX_ALLOCATIONS: Final = 200

_DEVICE_TIME: Final = Column(
    "ns", "device_ns", "on the device",
    "device work launched within it, not within the modules that it calls",
)  # fmt: skip
_MODULE_COLUMNS: Final = (
    Column("name", "name", "module"),
    Column("name", "parent", "called by", "the module that called it first"),
    CALLS,
    _DEVICE_TIME,
    Column("ns", "total_ns", "total", "on the host, with all that it calls"),
    Column("count", "n_ops", "operators", "calls of operators, without those of inner modules"),
    Column("ns", "op_ns", "operator time", "host time of these operators"),
)
_ALLOCATED_BY: Final = (Column("name", "op", "operator"), Column("text", "device", "device"))
_OPERATOR_COLUMNS: Final = (
    *_ALLOCATED_BY,
    Column("count", "n_allocations", "allocations"),
    Column("bytes", "allocated_bytes", "allocated", "sum of their sizes"),
    Column("bytes", "net_bytes", "net", "allocated minus freed within the operator"),
)
_ALLOCATION_COLUMNS: Final = (
    *_ALLOCATED_BY,
    Column("bytes", "n_bytes", "bytes"),
    Column("ns", "at_ns", "allocated at", "from the start of the trace"),
    Column("ns", "lifetime_ns", "freed after", "–: not freed in the recording"),  # noqa: RUF001  (a dash)
)


@dataclass(frozen=True)
class ModuleTime:
    """The time of one ``nn.Module``.

    Attributes:
        name: Its name in torch's events, such as ``Linear_3``.
        parent: The module that called it first; None at the top and where no calls are recorded.
        n_calls: Its calls in the window; None where no calls are recorded.
        total_ns: Sum of their lengths on the host; None where no calls are recorded.
        n_ops: Calls of operators of which it is the innermost module.
        op_ns: Host self time of these operators.
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
class OperatorMemory:
    """Memory that an operator allocated on a device as the innermost operator.

    Attributes:
        op: The operator.
        device: ``cpu``, ``cuda:0``.
        n_allocations: Allocations.
        allocated_bytes: Sum of their sizes.
        net_bytes: ``allocated_bytes`` minus the bytes freed within this operator.
    """

    op: str
    device: str
    n_allocations: int
    allocated_bytes: int
    net_bytes: int


@dataclass(frozen=True)
class LargestAllocation:
    """One allocation.

    Attributes:
        op: The innermost operator at that time, or None.
        device: ``cpu``, ``cuda:0``.
        n_bytes: Its size.
        at_ns: When, from the trace's start.
        lifetime_ns: Until it was freed; None where the recording does not include that.
    """

    op: str | None
    device: str
    n_bytes: int
    at_ns: int
    lifetime_ns: int | None


def define_module_instances(ctx: Context) -> Table:
    """Define the table of every module, for the page."""
    instances = find_module_times(ctx)
    on_device = any(instance.device_ns for instance in instances)
    # Without work on devices, its time is a column of zeros.
    columns = [column for column in _MODULE_COLUMNS if on_device or column is not _DEVICE_TIME]
    return Table(
        "module_instances",
        "Module instances in total",
        tuple(columns),
        instances,
        sorted_by="on the device" if on_device else "operator time",
    )


def define_operator_memory(ctx: Context) -> Table:
    """Define the table of the memory that each operator allocated, for the page."""
    return Table(
        "memory-operators",
        "Allocations by operator",
        _OPERATOR_COLUMNS,
        find_operator_memory(ctx),
        sorted_by="allocated",
    )


def define_largest_allocations(ctx: Context) -> Table:
    """Define the table of the largest allocations, for the page."""
    return Table(
        "memory-largest",
        "Largest allocations",
        _ALLOCATION_COLUMNS,
        find_largest_allocations(ctx),
        sorted_by="bytes",
    )


def find_module_times(ctx: Context) -> tuple[ModuleTime, ...]:
    """Find the time of every module; by time on devices, then on the host, then name."""
    events, source, launches = ctx.events, ctx.source, ctx.launches
    n = len(source.modules)
    if not n:
        return ()
    is_op: Mask = events.category == Category.OP
    ops = np.flatnonzero(is_op & (source.module != NO_FRAME))
    op_ns = sum_by_key(n, source.module[ops], ctx.op_self_ns[ops])
    n_ops = np.bincount(source.module[ops], minlength=n)

    # Device work belongs to the module around its operator, or without one around its launch.
    origin = np.where(launches.op != NO_ROW, launches.op, launches.launch)
    in_module = origin != NO_ROW
    in_module[in_module] = source.module[origin[in_module]] != NO_FRAME
    work_ns = events.dur_ns[launches.work[in_module]]
    device_ns = sum_by_key(n, source.module[origin[in_module]], work_ns)

    calls = _find_module_calls(ctx)
    times = []
    for number, name in enumerate(source.modules):
        parent, n_calls, total_ns = calls.get(name, (None, None, None))
        figures = (int(n_ops[number]), int(op_ns[number]), int(device_ns[number]))
        times.append(ModuleTime(name, parent, n_calls, total_ns, *figures))
    return tuple(sorted(times, key=lambda m: (-m.device_ns, -m.op_ns, m.name)))[:_MAX_ROWS]


def _find_module_calls(ctx: Context) -> dict[str, tuple[str | None, int, int]]:
    """Find by module: the module that called it first, its calls, and the sum of their lengths."""
    events = ctx.events
    is_module = np.fromiter((name.startswith(MODULE_PREFIX) for name in events.names), np.bool_)
    is_call: Mask = (events.category == Category.PYTHON) & is_module[events.name]
    rows = np.flatnonzero(is_call)
    callers = ctx.tree.enclosing(is_call)[rows]

    calls: dict[str, tuple[str | None, int, int]] = {}
    order = np.argsort(events.ts_ns[rows], kind="stable")
    for row, caller in zip(rows[order].tolist(), callers[order].tolist(), strict=True):
        name = events.name_of(row).removeprefix(MODULE_PREFIX)
        first = events.name_of(caller).removeprefix(MODULE_PREFIX) if caller != NO_ROW else None
        parent, n_calls, total_ns = calls.get(name, (first, 0, 0))
        calls[name] = (parent, n_calls + 1, total_ns + int(events.dur_ns[row]))
    return calls


def find_kernel_extremes(
    ctx: Context, kernels: Sequence[KernelSummary]
) -> dict[str, tuple[int, int]]:
    """Find the shortest and the longest call of each kernel, in nanoseconds, by its name."""
    events = ctx.events
    rows = events.kernels
    shortest = np.full(len(events.names), np.iinfo(np.int64).max, dtype=np.int64)
    longest = np.zeros(len(events.names), dtype=np.int64)
    np.minimum.at(shortest, events.name[rows], events.dur_ns[rows])
    np.maximum.at(longest, events.name[rows], events.dur_ns[rows])

    numbers = {events.names[number]: number for number in distinct(events.name[rows]).tolist()}
    return {
        kernel.name: (int(shortest[numbers[kernel.name]]), int(longest[numbers[kernel.name]]))
        for kernel in kernels
    }


def find_operator_memory(ctx: Context) -> tuple[OperatorMemory, ...]:
    """Find how much each operator allocated on each device, the most bytes first."""
    table, events = ctx.trace.memory, ctx.events
    size = len(events.names)
    devices = sorted({*zip(table.device_type.tolist(), table.device.tolist(), strict=True)})
    memories = []
    for kind, number in devices:
        rows = np.flatnonzero((table.device_type == kind) & (table.device == number))
        op = _find_innermost_ops(ctx, rows)
        in_op = op != NO_ROW
        n_bytes, name = table.n_bytes[rows[in_op]], events.name[op[in_op]]

        # Allocations have positive sizes, frees negative ones.
        is_allocation = n_bytes > 0
        counts = np.bincount(name[is_allocation], minlength=size)
        allocated = sum_by_key(size, name[is_allocation], n_bytes[is_allocation])
        net = sum_by_key(size, name, n_bytes)
        device = device_label(kind, number)
        memories += [
            OperatorMemory(events.names[i], device, int(counts[i]), int(allocated[i]), int(net[i]))
            for i in distinct(name).tolist()
        ]
    return tuple(sorted(memories, key=lambda m: (-m.allocated_bytes, m.op, m.device)))[:_MAX_ROWS]


def find_largest_allocations(ctx: Context) -> tuple[LargestAllocation, ...]:
    """Find the largest allocations of the window; of equal ones the earliest first."""
    table, events, pairs = ctx.trace.memory, ctx.events, ctx.allocations
    chosen = np.lexsort((pairs.alloc, -pairs.n_bytes))[:_MAX_ALLOCATIONS]
    rows, frees = pairs.alloc[chosen], pairs.free[chosen]
    ops = _find_innermost_ops(ctx, rows)
    return tuple(
        LargestAllocation(
            op=events.name_of(op) if op != NO_ROW else None,
            device=device_label(int(table.device_type[row]), int(table.device[row])),
            n_bytes=int(table.n_bytes[row]),
            at_ns=int(table.ts_ns[row]),
            lifetime_ns=int(table.ts_ns[free] - table.ts_ns[row]) if free >= 0 else None,
        )
        for op, row, free in zip(ops.tolist(), rows.tolist(), frees.tolist(), strict=True)
    )


def _find_innermost_ops(ctx: Context, rows: Rows) -> Int32s:
    """Return the innermost operator at the time of some memory events, or NO_ROW."""
    # NO_ROW, which is -1, selects the appended element.
    return np.append(ctx.innermost_op, np.int32(NO_ROW))[ctx.rows_of_memory[rows]]
