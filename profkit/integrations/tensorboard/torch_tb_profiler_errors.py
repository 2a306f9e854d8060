"""Figures that the tab "PyTorch Profiler" (torch-tb-profiler 0.4.3) shows wrongly of a recording.

That plugin was last updated for torch 1.13. Events that it does not know from later versions it
counts as zero, or twice, without a warning.
"""

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.errors import LoadError
from profkit.index.device.occupancy import mean_by_time
from profkit.index.runtime_calls import names_matching
from profkit.model.events import Category
from profkit.model.report import Report
from profkit.model.torch_names import STEP
from profkit.patterns import regex
from profkit.readers.stream import Chunks, open_plain, place_of
from profkit.units import format_count, format_ns, format_share

_COLLECTIVES: Final = frozenset(
    f"nccl:{name}" for name in ("broadcast", "reduce", "all_reduce", "all_gather", "reduce_scatter")
)
_RUNTIME_CATEGORY: Final = regex(rb'"cat"\s*:\s*"(\w*runtime)"', re.IGNORECASE)
_MAX_CATEGORY_LENGTH: Final = 64
_MIN_SHARE: Final = 0.05
"""Of kernel time; kernels with a smaller share do not change the mean noticeably."""
_MAX_READ_BYTES: Final = 1 << 29
"""The first runtime call of a trace with device work comes long before."""


@dataclass(frozen=True)
class Misreading:
    """A figure that the other tab shows wrongly: where, what and why, and the correct figure."""

    where: str
    shown: str
    actual: str


def find_misreadings(ctx: Context, report: Report) -> tuple[Misreading, ...]:
    """Return the figures of a recording that the other tab shows wrongly.

    Source: ``profiler/trace.py`` (``EventTypeMap``, ``NcclOpNameSet``), ``event_parser.py`` and
    ``gpu_metrics_parser.py`` of torch-tb-profiler 0.4.3.
    """
    if not ctx.has_trace or not ctx.has_device_work:
        return ()
    return (
        *_check_operators(ctx),
        *_check_steps(ctx),
        *_check_communication(ctx, report),
        *_check_copies(report),
        *_check_occupancy(ctx),
    )


def _check_operators(ctx: Context) -> Iterator[Misreading]:
    if not _has_new_runtime_category(ctx.trace.path):
        return
    device_ns = int(ctx.events.dur_ns[ctx.launches.work].sum())
    yield Misreading(
        "Operator: device time of every operator; Overview: Runtime",
        "Both are 0: the plugin expects the event category runtime; torch writes cuda_runtime.",
        f"Kernels, copies and fills sum to {format_ns(device_ns)}; the table of operators in the "
        "report has the device time of each.",
    )


def _has_new_runtime_category(path: str) -> bool:
    """Return whether runtime calls have another category than torch wrote up to 1.12."""
    # The trace is searched as text: a category may be cut by the end of a chunk.
    tail = b""
    try:
        with open_plain(place_of(path)) as stream:
            for chunk in Chunks(stream, _MAX_READ_BYTES):
                text = tail + chunk
                if match := _RUNTIME_CATEGORY.search(text):
                    return match[1].lower() != b"runtime"
                tail = text[-_MAX_CATEGORY_LENGTH:]
    except LoadError:
        pass
    return False


def _check_steps(ctx: Context) -> Iterator[Misreading]:
    events = ctx.events
    is_step = names_matching(events, STEP)[events.name]
    n_on_device = int((is_step & (events.category == Category.DEVICE_ANNOTATION)).sum())
    if n_on_device:
        yield Misreading(
            "Overview: number of steps and their average",
            f"The {format_count(n_on_device)} annotations of steps on devices are counted as more "
            "steps.",
            f"The recording has {format_count(len(ctx.steps))} steps.",
        )

    if not len(ctx.tree.rows):
        yield Misreading(
            "Overview: every figure",
            "Without host events the plugin has no start time, and all times are wrong.",
            "The overview of the report has the time of the devices.",
        )


def _check_communication(ctx: Context, report: Report) -> Iterator[Misreading]:
    events = ctx.events
    is_known = np.fromiter((name in _COLLECTIVES for name in events.names), dtype=np.bool_)
    communication_ns = sum(device.communication_ns for device in report.summary.devices)

    # Up to torch 1.10 collectives were operators, and the plugin finds the kernels of operators.
    if communication_ns and not is_known[events.name[events.rows_of(Category.OP)]].any():
        yield Misreading(
            "Overview: Communication; Distributed",
            "The plugin recognizes communication by five operator names on the host, and counts "
            "the kernels of collectives as computation.",
            f"Kernels of collectives ran {format_ns(communication_ns)}.",
        )


def _check_copies(report: Report) -> Iterator[Misreading]:
    devices = report.summary.devices
    span_ns = sum(device.span_ns for device in devices)
    memcpy_ns = sum(device.memcpy_ns for device in devices)
    if span_ns and memcpy_ns:
        busy = format_share(sum(device.busy_ns for device in devices) / span_ns)
        yield Misreading(
            "Overview: GPU Utilization",
            "Only kernels count as utilization; copies and fills do not.",
            f"Copies ran {format_ns(memcpy_ns)}; with all its work the device was busy {busy} of "
            "the time from its first work to its last.",
        )


def _check_occupancy(ctx: Context) -> Iterator[Misreading]:
    events = ctx.events
    kernels = events.kernels
    dur_ns = events.dur_ns[kernels]
    occupancy = events.occupancy_percent.figures_at(kernels)

    # Both figures are recorded together: where only the blocks were read, the occupancy was no
    # estimate.
    is_missing = np.isnan(occupancy) & ~np.isnan(events.blocks_per_sm.figures_at(kernels))
    missing_ns, total_ns = int(dur_ns[is_missing].sum()), int(dur_ns.sum())
    if not total_ns or missing_ns < _MIN_SHARE * total_ns:
        return

    mean = mean_by_time(occupancy, dur_ns)
    remark = "" if mean is None else f" The mean of the others is {format_share(mean / 100)}."
    yield Misreading(
        "Overview and Kernel: Est. Achieved Occupancy",
        "The profiler writes 0 for kernels with more than 48 KiB of shared memory, because it "
        "cannot estimate their occupancy; the mean includes these zeros.",
        f"The occupancy of {format_share(missing_ns / total_ns)} of kernel time is "
        f"unknown.{remark}",
    )
