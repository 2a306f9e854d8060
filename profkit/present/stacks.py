"""Stacks with their weights, for the formats of flame graph programs.

They come from a recording, or from what a report alone has kept of one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from profkit.errors import UsageError
from profkit.model.events import NO_ROW, Category
from profkit.model.flame import FLAMES, Flame, FlameSite, FlameUnit
from profkit.model.location import Frame, Location
from profkit.model.memory_summary import AllocationSite
from profkit.model.report import Report
from profkit.names import short_path, visible
from profkit.present.renderer import LoadedRecording

_SHORT: Final = {"host": "host-stack", "device": "device-stack", "memory": "memory-stack"}
"""Shorter words for the flame graphs that one wants most."""


@dataclass(frozen=True)
class WeightedStacks:
    """Stacks of one kind.

    Attributes:
        name: A key of :data:`~profkit.model.flame.FLAMES`.
        unit: Of the weights.
        of: What the weights add up to, in one sentence.
        rows: Each stack from the outside in, and its weight, which is more than nothing.
    """

    name: str
    unit: FlameUnit
    of: str
    rows: tuple[tuple[tuple[FlameSite, ...], int], ...]

    @property
    def title(self) -> str:
        """What it is called."""
        return FLAMES[self.name]

    @property
    def weight(self) -> int:
        """All weights together."""
        return sum(weight for _, weight in self.rows)


@dataclass(frozen=True)
class StackOptions:
    """Which stacks a format of stacks has.

    Attributes:
        weight: ``host``, ``device``, ``memory``, or the name of a flame graph such as
            ``device-module``; empty leaves it to the format.
        recording: What the report was made from; without it there is what the report has kept.
        base: An absolute folder; paths inside are shown relative to it.
    """

    weight: str = ""
    recording: LoadedRecording | None = None
    base: str = ""


def all_stacks(report: Report, recording: LoadedRecording | None) -> Iterator[WeightedStacks]:
    """Every kind of stacks that there is, each worked out when it is asked for.

    Args:
        recording: What it was made from; without it there is what the report has kept.
    """
    if recording is not None:
        for name in FLAMES:
            yield from _of_recording(recording, name)
        return
    kept = (_operators(report), _kernels(report), _sites(report))
    yield from (each for each in kept if each.rows)


def _of_recording(recording: LoadedRecording, name: str) -> Iterator[WeightedStacks]:
    from profkit.present.flames import flames  # noqa: PLC0415  (formats without stacks load none)

    yield from map(_of_flame, flames(recording.context, (name,)))


def chosen_stacks(
    report: Report, recording: LoadedRecording | None, weight: str
) -> WeightedStacks | None:
    """The stacks of one kind, or None where there is nothing of any kind.

    Args:
        recording: What it was made from, or None.
        weight: ``host``, ``device``, ``memory``, or a key of
            :data:`~profkit.model.flame.FLAMES`; empty for the first that there is.

    Raises:
        UsageError: There is no such kind, or the recording has nothing of it.
    """
    name = _SHORT.get(weight, weight)
    if weight and name not in FLAMES:
        words = ", ".join((*_SHORT, *FLAMES))
        raise UsageError(f"There are no stacks weighed by {weight!r}.", f"There are {words}.")
    if not weight:
        return next(all_stacks(report, recording), None)
    if recording is not None:
        found = tuple(_of_recording(recording, name))
    else:
        found = tuple(each for each in all_stacks(report, None) if each.name == name)
    if not found:
        there = ", ".join(each.name for each in all_stacks(report, recording))
        hint = f"It has {there}." if there else "It has no stacks at all."
        raise UsageError(f"The recording has nothing for {weight!r}.", hint)
    return found[0]


def site_label(site: FlameSite, base: str = "") -> str:
    """What to call a site: its name, and its file and line where it is one.

    Args:
        base: An absolute folder; paths inside are shown relative to it.
    """
    if site.frame is None:
        return visible(site.name) or "(no name)"
    return visible(f"{site.name} ({short_path(site.frame.file, base)}:{site.frame.line})")


def remark(report: Report, options: StackOptions) -> str:  # noqa: ARG001  (as renderers have it)
    """What stands in the place of Python's stacks, in a sentence; empty where they are there.

    Args:
        options: What it was made from.
    """
    recording = options.recording
    if recording is None:
        return (
            "A report alone has no stacks: its lines, operators and kernels stand in their place."
        )
    ctx = recording.context
    if ctx.has_trace and not (ctx.events.category == Category.PYTHON).any():
        return "The recording has no Python stacks: its operators stand in their place."
    return ""


def _of_flame(flame: Flame) -> WeightedStacks:
    """A flame graph's nodes with a weight of their own, each with all that is above it."""
    sites = [flame.sites[each] for each in flame.site.tolist()]
    parents = flame.parent.tolist()
    above: list[tuple[FlameSite, ...]] = []
    for site, parent in zip(sites, parents, strict=True):
        above.append((*(above[parent] if parent != NO_ROW else ()), site))
    own = flame.own.tolist()
    rows = tuple((stack, weight) for stack, weight in zip(above, own, strict=True) if weight > 0)
    return WeightedStacks(flame.name, flame.unit, flame.of, rows)


def _operators(report: Report) -> WeightedStacks:
    of = "Time in operators without those within, by the line with most of it."
    rows = tuple(
        ((*_line(op.location), FlameSite("op", op.name)), op.self_ns)
        for op in report.summary.top_ops
        if op.self_ns > 0
    )
    return WeightedStacks("host-line", "ns", of, rows)


def _kernels(report: Report) -> WeightedStacks:
    of = "The lengths of all kernels, by the line and the operator with most of it."
    rows = []
    for kernel in report.summary.top_kernels:
        op = (FlameSite("op", kernel.op),) if kernel.op else ()
        stack = (*_line(kernel.location), *op, FlameSite("kernel", kernel.name))
        if kernel.total_ns > 0:
            rows.append((stack, kernel.total_ns))
    return WeightedStacks("device-line", "ns", of, tuple(rows))


def _sites(report: Report) -> WeightedStacks:
    of = "What was active on a device when most was: the lines with most of it."
    memory = report.summary.memory
    rows = tuple(
        ((FlameSite("device", device.device), *_stack(site)), site.bytes)
        for device in (memory.devices if memory is not None else ())
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
    if where is None or where.file is None or where.line is None:
        return (FlameSite("unknown", "no line known"),)
    frame = Frame(where.file, where.line, where.function or "", where.precision)
    return (FlameSite("line", frame.function, frame),)
