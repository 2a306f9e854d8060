"""What the tab "PyTorch Profiler" (torch-tb-profiler 0.4.3) shows wrongly of a recording.

That plugin was last changed for torch 1.13. What it does not know of later recordings it shows as
zero, or counts twice, without a word. Who has both tabs open is told which figures to trust.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from profkit.engine.context import Context
from profkit.errors import LoadError
from profkit.index.device.occupancy import mean_by_time
from profkit.index.runtime_calls import names_matching
from profkit.model.events import Category
from profkit.model.report import Report
from profkit.model.torch_names import STEP
from profkit.readers.stream import Chunks, open_plain, place_of
from profkit.units import format_count, format_ns, format_share

_COLLECTIVES: Final = frozenset(
    f"nccl:{name}" for name in ("broadcast", "reduce", "all_reduce", "all_gather", "reduce_scatter")
)
_CALL: Final = re.compile(rb'"cat"\s*:\s*"(\w*runtime)"', re.IGNORECASE)
_LONGEST_CATEGORY: Final = 64
_WORTH_SAYING_SHARE: Final = 0.05
"""Of the time of kernels; a smaller part changes no mean that anybody would look at."""
_MOST_READ: Final = 1 << 29
"""The first call of a trace with device work comes long before."""


@dataclass(frozen=True)
class Misreading:
    """One thing that is shown wrongly.

    Attributes:
        where: The view and the figure.
        shown: What is shown there, and why.
        really: What is so.
    """

    where: str
    shown: str
    really: str


def misreadings(ctx: Context, report: Report) -> tuple[Misreading, ...]:
    """What that tab shows wrongly of a recording.

    Source: ``profiler/trace.py`` (``EventTypeMap``, ``NcclOpNameSet``), ``event_parser.py`` and
    ``gpu_metrics_parser.py`` of torch-tb-profiler 0.4.3.
    """
    if not ctx.has_trace or not ctx.has_device_work:
        return ()
    return (
        *_of_operators(ctx), *_of_steps(ctx), *_of_communication(ctx, report), *_of_copies(report),
        *_of_occupancy(ctx),
    )  # fmt: skip


def _of_operators(ctx: Context) -> Iterator[Misreading]:
    if not _names_calls_anew(ctx.trace.path):
        return
    device_ns = int(ctx.events.dur_ns[ctx.launches.work].sum())
    yield Misreading(
        "Operator: device time of every operator; Overview: Runtime",
        "Both are 0: it looks for calls of the category runtime, and torch names it cuda_runtime.",
        f"The device worked {format_ns(device_ns)}, all kernels, copies and fills added up; "
        "the view Operators here tells whose they are.",
    )


def _names_calls_anew(path: str) -> bool:
    """Whether a trace calls calls of the runtime otherwise than torch did up to 1.12."""
    tail = b""
    try:
        with open_plain(place_of(path)) as stream:
            for chunk in Chunks(stream, _MOST_READ):
                text = tail + chunk
                if found := _CALL.search(text):
                    return found[1].lower() != b"runtime"
                tail = text[-_LONGEST_CATEGORY:]
    except LoadError:
        pass
    return False


def _of_steps(ctx: Context) -> Iterator[Misreading]:
    events = ctx.events
    is_step = names_matching(events.names, STEP)[events.name]
    on_device = int((is_step & (events.category == Category.DEVICE_ANNOTATION)).sum())
    if on_device:
        yield Misreading(
            "Overview: number of steps and their average",
            f"Steps are counted again as the device saw them: {format_count(on_device)} more.",
            f"There are {format_count(len(ctx.steps))}.",
        )
    has_host = bool(len(ctx.tree.rows))
    if not has_host:
        yield Misreading(
            "Overview: every figure",
            "Without events of the host it reckons from no beginning, and shows times of no sense.",
            "The view Overview here tells what the devices did.",
        )


def _of_communication(ctx: Context, report: Report) -> Iterator[Misreading]:
    events = ctx.events
    is_known = np.fromiter((name in _COLLECTIVES for name in events.names), dtype=np.bool_)
    communication_ns = sum(device.communication_ns for device in report.summary.devices)
    # Up to torch 1.10 they were operators, whose kernels it can join to them.
    if communication_ns and not is_known[events.name[events.rows_of(Category.OP)]].any():
        yield Misreading(
            "Overview: Communication; Distributed",
            "It knows communication by five names on the host alone, and takes the kernels "
            "themselves for computation.",
            f"Communication kernels ran {format_ns(communication_ns)}.",
        )


def _of_copies(report: Report) -> Iterator[Misreading]:
    devices = report.summary.devices
    span_ns = sum(device.span_ns for device in devices)
    memcpy_ns = sum(device.memcpy_ns for device in devices)
    if span_ns and memcpy_ns:
        busy = format_share(sum(device.busy_ns for device in devices) / span_ns)
        yield Misreading(
            "Overview: GPU Utilization",
            "Only kernels count as use of the device, not copies and fills.",
            f"Copies ran {format_ns(memcpy_ns)}; with all its work the device was busy {busy} of "
            "the time from its first work to its last.",
        )


def _of_occupancy(ctx: Context) -> Iterator[Misreading]:
    events = ctx.events
    kernels = events.rows_of(Category.KERNEL)
    dur_ns = events.dur_ns[kernels]
    occupancy = events.occupancy_percent.figures_at(kernels)
    # Both figures are written together: where only one is kept, the other was no figure.
    is_lost = np.isnan(occupancy) & ~np.isnan(events.blocks_per_sm.figures_at(kernels))
    lost_ns, total_ns = int(dur_ns[is_lost].sum()), int(dur_ns.sum())
    if not total_ns or lost_ns < _WORTH_SAYING_SHARE * total_ns:
        return
    mean = mean_by_time(occupancy, dur_ns)
    others = "" if mean is None else f" That of the others is {format_share(mean / 100)}."
    yield Misreading(
        "Overview and Kernel: Est. Achieved Occupancy",
        "The profiler writes 0 where it cannot estimate it, for kernels that ask for more than "
        "48 KiB of shared memory, and these zeros are in the mean.",
        f"Of {format_share(lost_ns / total_ns)} of the kernels' time it is not known.{others}",
    )
