"""Memory in words and rows: what a snapshot holds, and how a watched program's memory went."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from profkit.engine.wording import at, counted
from profkit.model.memory_summary import (
    AllocationSite,
    MemorySummary,
    OomSummary,
    SnapshotDevice,
    StepMemory,
)
from profkit.model.report import Report
from profkit.names import visible
from profkit.present.device_facts import device_facts
from profkit.units import format_bytes, format_share

_COURSES: Final = (
    ("host memory", "host_rss_bytes"),
    ("tensors", "tensor_bytes"),
    ("kept for backward", "graph_bytes"),
    ("allocated on devices", "allocated_bytes"),
    ("peak of a device", "peak_bytes"),
    ("reserved on devices", "reserved_bytes"),
    ("a loader's worker", "worker_bytes"),
)
_USES: Final = {
    "parameter": "parameters",
    "gradient": "gradients",
    "optimizer-state": "optimizer state",
    "activation": "activations",
    "input": "inputs",
    "workspace": "workspaces",
    "communication": "communication",
    "unknown": "",
}
_WHY: Final = {
    "exhaustion": "; what PyTorch had was in use",
    "fragmentation": "; PyTorch had enough that was free, but in pieces",
    "outside": "; much of the device was not PyTorch's",
    "limit": "; the device had enough, and a limit stood in the way",
}
_LEAST_UNEXPLAINED_BYTES: Final = 64 << 10
"""Less a step is not told where nobody is seen to hold it: heaps come and go by as much."""
_LEVELS: Final = "▁▂▃▄▅▆▇█"
_FLAT_SHARE: Final = 0.01
"""What changes by less of its highest than this is drawn as flat."""


@dataclass(frozen=True)
class MemorySeriesRow:
    """How one figure of a watched program went.

    Attributes:
        name: What it is, in a word or two.
        steps: The steps that it is known of.
        values_bytes: It, after each of them.
    """

    name: str
    steps: tuple[int, ...]
    values_bytes: tuple[int, ...]

    @property
    def first_bytes(self) -> int:
        """What it was first."""
        return self.values_bytes[0]

    @property
    def last_bytes(self) -> int:
        """What it was in the end."""
        return self.values_bytes[-1]

    @property
    def highest_bytes(self) -> int:
        """The most that it was."""
        return max(self.values_bytes)

    def drawn(self, width: int) -> str:
        """It over the steps, as a row of bars from its lowest to its highest.

        Args:
            width: Columns.
        """
        low, high = min(self.values_bytes), self.highest_bytes
        if high - low <= high * _FLAT_SHARE:
            return _LEVELS[0] * width
        top = len(_LEVELS) - 1
        return "".join(_LEVELS[round((n - low) / (high - low) * top)] for n in self._spread(width))

    def _spread(self, width: int) -> Iterator[int]:
        """The last known value at each of so many steps, evenly apart."""
        first, last, place = self.steps[0], self.steps[-1], 0
        for column in range(width):
            step = first + (last - first) * (column + 1) / width
            while place + 1 < len(self.steps) and self.steps[place + 1] <= step:
                place += 1
            yield self.values_bytes[place]


@dataclass(frozen=True)
class AllocationTable:
    """What stood on a device at one moment, by the line that allocated it.

    Attributes:
        title: Which device and moment.
        total_bytes: What stood in all.
        sites: By stack, the most bytes first.
    """

    title: str
    total_bytes: int
    sites: tuple[AllocationSite, ...]

    def share(self, site: AllocationSite) -> float:
        """A site's bytes as a share of all."""
        return site.bytes / self.total_bytes if self.total_bytes else 0.0


def use_of(site: AllocationSite) -> str:
    """What a site's blocks are used for, in a word; empty where that is not known."""
    return use_label(site.category)


def use_label(category: str) -> str:
    """A use in a word or two, ``optimizer state``; empty where it is not known.

    Args:
        category: As in :class:`~profkit.model.memory_summary.MemoryUse`.
    """
    return _USES.get(category, visible(category))


def place_of(site: AllocationSite) -> str:
    """What to say of a site whose line is not known: why it is not."""
    if site.is_before_recording:
        return "before the history began"
    return visible(site.location.function or "") or "no stack kept"


def series_rows(report: Report) -> list[MemorySeriesRow]:
    """How each known figure of a watched program went; those that stay at nothing are left out."""
    memory = report.summary.memory
    found = [] if memory is None else [_course(memory.steps, *each) for each in _COURSES]
    return [each for each in found if len(each.steps) > 1 and each.highest_bytes]


def device_series_rows(report: Report) -> list[MemorySeriesRow]:
    """How the memory of a snapshot's devices went over the history that it kept.

    A device that had nothing, and a history of one entry, have no course.
    """
    memory = report.summary.memory
    devices = [each for each in memory.devices if _has_course(each)] if memory else []
    found = []
    for device in devices:
        entries = tuple(point.entry for point in device.timeline)
        active = tuple(point.active_bytes for point in device.timeline)
        found.append(MemorySeriesRow(f"{device.device} in use", entries, active))
        if len(devices) == 1:
            reserved = tuple(point.reserved_bytes for point in device.timeline)
            found.append(MemorySeriesRow(f"{device.device} reserved", entries, reserved))
    return found


def _has_course(device: SnapshotDevice) -> bool:
    told = any(point.active_bytes or point.reserved_bytes for point in device.timeline)
    return told and len(device.timeline) > 2  # noqa: PLR2004  (before and after its only entry)


def _course(steps: tuple[StepMemory, ...], name: str, figure: str) -> MemorySeriesRow:
    known = [(each.step, n) for each in steps if (n := getattr(each, figure)) is not None]
    return MemorySeriesRow(name, tuple(step for step, _ in known), tuple(n for _, n in known))


def allocation_tables(report: Report, *, everything: bool) -> list[AllocationTable]:
    """What stood on each device when memory ran out, else at its peak, else in the end.

    Args:
        everything: Whether to tell of all three.
    """
    memory = report.summary.memory
    found: list[AllocationTable] = []
    for device in memory.devices if memory else ():
        told: dict[tuple[AllocationSite, ...], AllocationTable] = {}
        for each in _moments(device):
            told.setdefault(each.sites, each)
        told.pop((), None)
        found += list(told.values())[: None if everything else 1]
    return found


def _moments(device: SnapshotDevice) -> Iterator[AllocationTable]:
    for oom in device.oom[-1:]:
        title = f"On {device.device} when {format_bytes(oom.bytes)} could not be had"
        yield AllocationTable(title, oom.active_bytes or device.active_bytes, oom.sites)
    if device.n_trace_events:
        yield AllocationTable(
            f"On {device.device} at its peak", device.at_peak_bytes, device.peak_sites
        )
    yield AllocationTable(f"On {device.device} in the end", device.active_bytes, device.top_sites)


def memory_sentences(report: Report) -> list[str]:
    """What a report without times comes down to; nothing where nothing is known of memory."""
    memory = report.summary.memory
    if report.source.kind == "snapshot" and (memory is None or not memory.devices):
        return ["The snapshot holds no memory of any device."]
    if memory is None:
        return []
    if memory.devices:
        return list(_of_snapshot(memory))
    went = " and ".join(map(_went, series_rows(report)[:2]))
    steps = counted(memory.n_monitored_steps or 0, "step")
    return [f"Over {steps} {went}."] if went else []


def _went(course: MemorySeriesRow) -> str:
    first, last = format_bytes(course.first_bytes), format_bytes(course.last_bytes)
    if first == last:
        return f"{course.name} stayed at {last}"
    return f"{course.name} went from {first} to {last}"


def _of_snapshot(memory: MemorySummary) -> Iterator[str]:
    fullest = max(memory.devices, key=lambda device: device.reserved_bytes)
    name = f"{fullest.device} has"
    if len(memory.devices) > 1:
        name = f"Of {len(memory.devices)} devices {fullest.device} is the fullest, with"
    active, peak = format_bytes(fullest.active_bytes), format_bytes(fullest.at_peak_bytes)
    more = f", and {peak} at the peak" if peak != active else ""
    yield f"{name} {format_bytes(fullest.reserved_bytes)} reserved and {active} in use{more}."
    for device in memory.devices:
        if device.oom:
            yield _out_of_memory(device, device.oom[-1])


def _out_of_memory(device: SnapshotDevice, oom: OomSummary) -> str:
    place = at(oom.location) if oom.location else ""
    free = ""
    if oom.device_free_bytes is not None:
        free = f" while {format_bytes(oom.device_free_bytes)} were free on the device"
    why = _WHY.get(oom.reason or "", "")
    if oom.reason == "fragmentation" and oom.largest_usable_block_bytes is not None:
        why += f" of at most {format_bytes(oom.largest_usable_block_bytes)}"
    return f"{device.device} could not give {format_bytes(oom.bytes)}{place}{free}{why}."


def has_oom(report: Report) -> bool:
    """Whether a snapshot tells of a request that could not be met: then that is all there is."""
    memory = report.summary.memory
    return memory is not None and any(device.oom for device in memory.devices)


def no_memory_findings(report: Report) -> str:
    """What to say of a report on memory whose findings name no cost."""
    if report.findings:
        return "No finding is more than a note."
    memory = report.summary.memory
    if memory is not None and memory.n_leaks == 0:
        said = no_leak_text(memory)
        return f"{said[0].upper()}{said[1:]}."
    if report.unchecked:
        return "The rules that could look found nothing to change."
    return "No rule found anything to change."


def no_leak_text(memory: MemorySummary) -> str:
    """What to say of a program of which nothing is seen to grow.

    Args:
        memory: What was watched of it.
    """
    unexplained = memory.unexplained_per_step_bytes or 0
    if unexplained < _LEAST_UNEXPLAINED_BYTES:
        return "nothing grows with every step"
    return (
        f"the process takes {format_bytes(unexplained)} more with every step, and no tensor or "
        "container of the program explains it; a library may keep it"
    )


def memory_facts(report: Report, *, everything: bool) -> Iterator[str]:
    """What was counted of memory, a line each.

    Args:
        everything: Whether to tell also of regions and of what holds free memory in place.
    """
    memory = report.summary.memory
    if memory is None:
        return
    if memory.peak:
        peaks = (f"{format_bytes(peak.bytes)} on {peak.device}" for peak in memory.peak)
        yield f"memory at its peak: {', '.join(peaks)}"
    for device in memory.devices:
        yield from device_facts(device, everything=everything)
    if memory.n_monitored_steps:
        yield "; ".join(_watched(report, memory))


def _watched(report: Report, memory: MemorySummary) -> Iterator[str]:
    steps = counted(memory.n_monitored_steps or 0, "step")
    went = "" if shows_series(report) else ", ".join(map(_went, series_rows(report)))
    yield f"memory over {steps}: {went}" if went else f"memory was watched over {steps}"
    if memory.n_leaks == 0:
        yield no_leak_text(memory)
    if memory.monitoring_share is not None:
        yield f"watching cost {format_share(memory.monitoring_share)} of the time"


def not_measured(report: Report) -> tuple[str, ...]:
    """What could not be watched of a program's memory, a sentence each."""
    memory = report.summary.memory
    return memory.not_measured if memory is not None else ()


def shows_series(report: Report) -> bool:
    """Whether the course of memory is worth more than a line: it grows, or it is all there is."""
    memory = report.summary.memory
    if memory is None or not memory.steps:
        return False
    return bool(memory.n_leaks) or report.summary.breakdown is None
