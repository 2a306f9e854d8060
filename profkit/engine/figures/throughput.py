"""What operators and kernels computed and moved per second, against the device's peaks."""

from dataclasses import replace
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.index.compute.formulas import is_product
from profkit.index.compute.inputs import kernel_element_bytes
from profkit.index.compute.op_work import UNKNOWN
from profkit.index.compute.peaks import PRECISION_OF, Peak, Precision
from profkit.index.device.matmul_precision import matmul_precision
from profkit.index.distinct import distinct
from profkit.index.runtime_calls import map_names
from profkit.model.events import NO_ROW, Category, Int32s, Int64s, Rows
from profkit.model.work_summary import Throughput

_NS: Final = 1e9


@dataclass(frozen=True)
class TimedWork:
    """Calls of operators whose work and time are known.

    Attributes:
        rows: The calls, ascending. Shape ``(k,)``.
        flops: Floating-point operations of each. Shape ``(k,)``.
        n_bytes: Bytes that each moves at least, or :data:`UNKNOWN`. Shape ``(k,)``.
        kind: The kind of its elements, as in :class:`OpWork`. Shape ``(k,)``.
        time_ns: Time of its kernels, or without devices of the call itself. Shape ``(k,)``.
        kernel: Its only kernel; :data:`NO_ROW` if it has several, or none. Shape ``(k,)``.
        main_kernel: Its longest kernel; :data:`NO_ROW` if it has none. Shape ``(k,)``.
    """

    rows: Rows
    flops: Int64s
    n_bytes: Int64s
    kind: Int64s
    time_ns: Int64s
    kernel: Int32s
    main_kernel: Int32s


def select_timed_work(ctx: Context) -> TimedWork:
    """Return the work of the trace's operators, with the time that it took."""
    work, events = ctx.op_work, ctx.events
    time_ns = np.zeros(len(events), dtype=np.int64)
    kernel, main_kernel = np.full((2, len(events)), NO_ROW, dtype=np.int32)
    if ctx.has_device_work:
        kernels, owners = _kernels_of(ctx, work.rows)
        np.add.at(time_ns, owners, events.dur_ns[kernels])
        # Of several kernels of a call the longest is assigned last, and stays.
        by_length = np.argsort(events.dur_ns[kernels], kind="stable")
        main_kernel[owners[by_length]] = kernels[by_length]
        kernel[:] = main_kernel
        kernel[np.bincount(owners, minlength=len(events)) > 1] = NO_ROW
    else:
        time_ns[work.rows] = events.dur_ns[work.rows]

    is_timed = time_ns[work.rows] > 0
    rows = work.rows[is_timed]
    n_bytes = work.n_bytes[is_timed]

    # Inputs without a recorded type have the element size that the kernel's name states.
    untyped = np.flatnonzero((n_bytes == UNKNOWN) & (main_kernel[rows] != NO_ROW))
    sizes = map_names(
        events, main_kernel[rows[untyped]], lambda name: kernel_element_bytes(name) or 0, np.int64
    )
    sizes *= work.n_untyped[is_timed][untyped]
    n_bytes[untyped[sizes > 0]] = sizes[sizes > 0]

    return TimedWork(
        rows,
        work.flops[is_timed],
        n_bytes,
        work.kind[is_timed],
        time_ns[rows],
        kernel[rows],
        main_kernel[rows],
    )


def _kernels_of(ctx: Context, rows: Rows) -> tuple[Int32s, Int32s]:
    """Return the kernels that some calls launched, and the call of each."""
    owner, launches = ctx.nearest(rows), ctx.launches
    is_kernel = ctx.events.category[launches.work] == Category.KERNEL
    has_op = is_kernel & (launches.op != NO_ROW)
    kernels, owners = launches.work[has_op], owner[launches.op[has_op]]
    return kernels[owners != NO_ROW], owners[owners != NO_ROW]


def compute_throughput(ctx: Context, work: TimedWork, places: Rows) -> Throughput | None:
    """Compute the throughput of some calls, such as all of one operator; None without any.

    Args:
        places: Their indices in ``work``.
    """
    if not len(places):
        return None

    time_ns, flops = int(work.time_ns[places].sum()), int(work.flops[places].sum())
    n_bytes = work.n_bytes[places]
    moved = None if (n_bytes == UNKNOWN).any() else int(n_bytes.sum())
    figures = Throughput(n_calls=len(places), time_ns=time_ns, flops=flops, bytes=moved)

    peak = _peak(ctx, work, places)
    if peak is None:
        return figures

    # Each precision has a peak of its own, so that of several none applies.
    kind = _precision(ctx, work, places)
    per_s = peak.flops_per_s.get(kind) if kind else None
    return replace(
        figures,
        flops_share=_share(flops, time_ns, per_s),
        bandwidth_share=_share(moved, time_ns, peak.bytes_per_s),
    )


def _share(amount: int | None, time_ns: int, per_s: float | None) -> float | None:
    return None if amount is None or per_s is None else amount / (time_ns / _NS) / per_s


def _peak(ctx: Context, work: TimedWork, places: Rows) -> Peak | None:
    """Return the peaks of the device that ran some calls; None if unknown or of several kinds."""
    if not ctx.has_device_work:
        return ctx.peak_of(None)
    devices = distinct(ctx.events.device.at(work.main_kernel[places]))
    peaks = [ctx.peak_of(int(device)) for device in devices]
    return peaks[0] if all(peak == peaks[0] for peak in peaks) else None


def _precision(ctx: Context, work: TimedWork, places: Rows) -> Precision | None:
    """Return the precision of some products; None for other work, several, or an unknown one."""
    names = distinct(ctx.events.name[work.rows[places]]).tolist()
    kinds = distinct(work.kind[places])
    if not all(is_product(ctx.events.names[name]) for name in names):
        return None
    if len(kinds) != 1 or kinds[0] == UNKNOWN:
        return None

    kernels = distinct(ctx.events.name[work.main_kernel[places]]).tolist()
    precisions = {product_precision(ctx, int(kinds[0]), kernel) for kernel in kernels}
    return precisions.pop() if len(precisions) == 1 else None


def product_precision(ctx: Context, kind: int, kernel: int) -> Precision | None:
    """Return the precision of a product; None if neither its type nor its kernel shows it.

    Args:
        kind: The kind of its elements, as in :class:`OpWork`, or :data:`UNKNOWN`.
        kernel: The name of its longest kernel, as a number; without devices any.
    """
    if kind == UNKNOWN:
        return None
    name = ctx.op_work.kinds[kind]

    # Floats may be multiplied in TF32, which only the name of the kernel shows.
    if name != "float":
        return PRECISION_OF.get(name)
    return matmul_precision(ctx.events.names[kernel]) if ctx.has_device_work else "float32"
