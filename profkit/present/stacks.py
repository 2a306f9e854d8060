"""Weighted stacks of a recording or of a report alone, for formats of flame graph programs."""

from collections.abc import Iterator
from typing import Final

from profkit.dataclass import dataclass
from profkit.errors import UsageError
from profkit.model.events import NO_ROW
from profkit.model.flame import FLAMES, Flame, FlameSite, FlameUnit
from profkit.model.location import NO_SOURCE_LINE, Frame, Location
from profkit.model.memory_summary import AllocationSite
from profkit.model.report import Report
from profkit.names import visible
from profkit.present.labels import source_line
from profkit.present.memory_text import devices_of
from profkit.present.renderer import LoadedRecording, RecordingOptions

_SHORT: Final = {"host": "host-stack", "device": "device-stack", "memory": "memory-stack"}
"""Short names of the most common flame graphs."""


@dataclass(frozen=True)
class WeightedStacks:
    """Stacks of one kind.

    Attributes:
        name: A key of :data:`~profkit.model.flame.FLAMES`.
        unit: Of the weights.
        of: What the weights add up to, in one sentence.
        rows: Each stack, outermost frame first, and its weight, which is positive.
    """

    name: str
    unit: FlameUnit
    of: str
    rows: tuple[tuple[tuple[FlameSite, ...], int], ...]

    @property
    def title(self) -> str:
        """Return the title of the flame graph."""
        return FLAMES[self.name]

    @property
    def weight(self) -> int:
        """Return the sum of the weights."""
        return sum(weight for _, weight in self.rows)


@dataclass(frozen=True)
class StackOptions(RecordingOptions):
    """Options of the formats of stacks.

    Attributes:
        weight: ``host``, ``device``, ``memory``, or the name of a flame graph such as
            ``device-module``; empty for the format's default.
    """

    weight: str = ""


def all_stacks(report: Report, recording: LoadedRecording | None) -> Iterator[WeightedStacks]:
    """Yield all stacks, computed one by one; without a recording, the stacks of the report."""
    if recording is not None:
        for name in FLAMES:
            yield from _recorded_stacks(recording, name)
        return
    of_report = (
        _operator_stacks(report),
        _kernel_stacks(report),
        _allocation_stacks(report),
    )
    yield from (stacks for stacks in of_report if stacks.rows)


def _recorded_stacks(recording: LoadedRecording, name: str) -> Iterator[WeightedStacks]:
    from profkit.present.flames import flames  # noqa: PLC0415  (formats without stacks load none)

    yield from map(_flame_stacks, flames(recording.context, (name,)))


def choose_stacks(
    report: Report, recording: LoadedRecording | None, weight: str
) -> WeightedStacks | None:
    """Choose the stacks of one kind; None if there are no stacks at all.

    Args:
        weight: ``host``, ``device``, ``memory``, or a key of
            :data:`~profkit.model.flame.FLAMES`; empty for the first with data.

    Raises:
        UsageError: There is no such kind, or the recording has no data of it.
    """
    name = _SHORT.get(weight, weight)
    if weight and name not in FLAMES:
        names = ", ".join((*_SHORT, *FLAMES))
        raise UsageError(f"There are no stacks weighted by {weight!r}.", f"There are {names}.")
    if not weight:
        return next(all_stacks(report, recording), None)

    # Of a recording, only the flame graph of this name is computed.
    candidates = (
        _recorded_stacks(recording, name) if recording is not None else all_stacks(report, None)
    )
    chosen = next((stacks for stacks in candidates if stacks.name == name), None)
    if chosen is None:
        names = ", ".join(stacks.name for stacks in all_stacks(report, recording))
        hint = f"It has {names}." if names else "It has no stacks at all."
        raise UsageError(f"The recording has no data for {weight!r}.", hint)
    return chosen


def site_label(site: FlameSite, base: str = "") -> str:
    """Return the name of a site, with its file, relative to ``base``, and line if it has one."""
    if site.frame is None:
        return visible(site.name) or "(no name)"
    line = source_line(site.frame.file, site.frame.line, base)
    return visible(f"{site.name} ({line})")


def remark(report: Report, options: StackOptions) -> str:  # noqa: ARG001  (as renderers have it)
    """Say what replaces Python stacks; empty if the recording has stacks."""
    recording = options.recording
    if recording is None:
        return "A report has no stacks: lines, operators and kernels are shown instead."
    ctx = recording.context
    if ctx.has_trace and not ctx.events.has_python_calls:
        return "The recording has no Python stacks: operators are shown instead."
    return ""


def _flame_stacks(flame: Flame) -> WeightedStacks:
    """Return the stacks of a flame graph's nodes that have a weight themselves."""
    sites = [flame.sites[number] for number in flame.site.tolist()]
    parents = flame.parent.tolist()
    stacks: list[tuple[FlameSite, ...]] = []
    # Parents precede their children.
    for site, parent in zip(sites, parents, strict=True):
        stacks.append((*(stacks[parent] if parent != NO_ROW else ()), site))

    weighted = zip(stacks, flame.own.tolist(), strict=True)
    rows = tuple((stack, weight) for stack, weight in weighted if weight > 0)
    return WeightedStacks(flame.name, flame.unit, flame.of, rows)


def _operator_stacks(report: Report) -> WeightedStacks:
    of = "Self time of operators, by the line with most of it."
    rows = tuple(
        ((*_line(op.location), FlameSite("op", op.name)), op.self_ns)
        for op in report.summary.top_ops
        if op.self_ns > 0
    )
    return WeightedStacks("host-line", "ns", of, rows)


def _kernel_stacks(report: Report) -> WeightedStacks:
    of = "Time in kernels, by the line and the operator with most of it."
    rows = []
    for kernel in report.summary.top_kernels:
        op = (FlameSite("op", kernel.op),) if kernel.op else ()
        stack = (*_line(kernel.location), *op, FlameSite("kernel", kernel.name))
        if kernel.total_ns > 0:
            rows.append((stack, kernel.total_ns))
    return WeightedStacks("device-line", "ns", of, tuple(rows))


def _allocation_stacks(report: Report) -> WeightedStacks:
    of = "Active memory of each device at its peak, by the allocation sites with most of it."
    rows = tuple(
        ((FlameSite("device", device.device), *_stack(site)), site.bytes)
        for device in devices_of(report)
        for site in device.peak_sites
        if site.bytes > 0
    )
    return WeightedStacks("memory-stack", "bytes", of, rows)


def _stack(site: AllocationSite) -> Iterator[FlameSite]:
    for frame in reversed(site.stack):
        yield FlameSite("python", frame.function, frame)
    if not site.stack:
        yield from _line(site.location)


def _line(where: Location | None) -> tuple[FlameSite, ...]:
    if where is None or where.file is None:
        return (FlameSite("unknown", NO_SOURCE_LINE),)
    frame = Frame(where.file, where.line, where.function or "", where.precision)
    return (FlameSite("line", frame.function, frame),)
