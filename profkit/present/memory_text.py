"""Sentences and rows on the memory of a snapshot and over a monitored program's steps."""

from collections.abc import Iterator, Sequence
from typing import Final

from profkit.dataclass import dataclass
from profkit.engine import needs
from profkit.engine.wording import at, counted, listed
from profkit.model.live_memory import HostPeak
from profkit.model.location import NO_SOURCE_LINE, base_name
from profkit.model.memory_summary import (
    AllocationSite,
    MemorySummary,
    OomSummary,
    SnapshotDevice,
)
from profkit.model.report import Report
from profkit.names import visible
from profkit.present.device_facts import describe_device
from profkit.present.skipped_checks import with_skipped_checks
from profkit.units import format_bytes, format_count, format_share

STEP_FIGURES: Final = {
    "host_rss_bytes": "host memory",
    "tensor_bytes": "tensors",
    "graph_bytes": "saved for backward",
    "allocated_bytes": "allocated on devices",
    "peak_bytes": "peak of a device",
    "reserved_bytes": "reserved on devices",
    "worker_bytes": "loader worker",
}
"""Labels of the figures of :class:`~profkit.model.memory_summary.StepMemory`."""
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
NO_PROBLEMS: Final = "No problems found."
_MIN_USE_SHARE: Final = 0.05
"""A use of less memory is not in the headline."""
_MAX_USE_LINES: Final = 2
_MAX_CONTENTS: Final = 3
_MAJORITY: Final = 0.5
_OOM_REASONS: Final = {
    "exhaustion": "; all memory that PyTorch had reserved was active",
    "fragmentation": "; PyTorch had enough free memory, but in separate blocks",
    "outside": "; much of the device was in use outside PyTorch",
    "limit": "; the device had enough, but a memory limit was reached",
}
_MIN_UNEXPLAINED_BYTES: Final = 64 << 10
"""Smaller growth per step without a known holder is not reported: heaps vary by as much."""
_MIN_PAST_BYTES: Final = 16 << 20
_MIN_PAST_SHARE: Final = 0.05
"""A process that has grown by less than both is not said to have grown."""
_MOST_OF_GROWTH: Final = 0.9
_EARLY_SHARE: Final = 0.6
"""Growth is over if most of it was there after this share of the steps."""
_MIN_FREED_SHARE: Final = 0.2
_COVERED_SHARE: Final = 0.9
"""Figures that end before this share of the steps are shown with their last step."""
_BARS: Final = "▁▂▃▄▅▆▇█"
_FLAT_SHARE: Final = 0.01
"""A figure that varies by less than this share of its maximum is drawn flat."""


@dataclass(frozen=True)
class MemorySeriesRow:
    """One figure of a program's memory over its steps, or over a history.

    Attributes:
        name: Its label.
        steps: The steps for which it is known.
        values_bytes: Its value after each of them.
    """

    name: str
    steps: tuple[int, ...]
    values_bytes: tuple[int, ...]

    @property
    def first_bytes(self) -> int:
        """Return the first value."""
        return self.values_bytes[0]

    @property
    def last_bytes(self) -> int:
        """Return the last value."""
        return self.values_bytes[-1]

    @property
    def highest_bytes(self) -> int:
        """Return the maximum."""
        return max(self.values_bytes)

    @property
    def change(self) -> str:
        """``host memory grew from 402 MiB to 1,000 MiB``."""
        first, last = format_bytes(self.first_bytes), format_bytes(self.last_bytes)
        if first == last:
            return f"{self.name} stayed at {last}"
        verb = "grew" if self.last_bytes > self.first_bytes else "fell"
        return f"{self.name} {verb} from {first} to {last}"

    def trend(self, width: int) -> str:
        """Draw a line of ``width`` bars over the steps, from the minimum to the maximum."""
        low, high = min(self.values_bytes), self.highest_bytes
        # Drawn from minimum to maximum, small variations would look like growth.
        if high - low <= high * _FLAT_SHARE:
            return _BARS[0] * width

        top = len(_BARS) - 1
        return "".join(_BARS[round((n - low) / (high - low) * top)] for n in self._resample(width))

    def _resample(self, width: int) -> Iterator[int]:
        """Yield the last known value at each of ``width`` evenly spaced steps."""
        first, last, place = self.steps[0], self.steps[-1], 0
        for column in range(width):
            step = first + (last - first) * (column + 1) / width
            while place + 1 < len(self.steps) and self.steps[place + 1] <= step:
                place += 1
            yield self.values_bytes[place]


@dataclass(frozen=True)
class AllocationTable:
    """A device's live blocks at one moment, by allocation site.

    Attributes:
        title: The device and the moment.
        total_bytes: Bytes of all live blocks.
        sites: Allocation sites, the most bytes first.
    """

    title: str
    total_bytes: int
    sites: tuple[AllocationSite, ...]

    def share(self, site: AllocationSite) -> float:
        """Return a site's share of all bytes."""
        return site.bytes / self.total_bytes if self.total_bytes else 0.0


def devices_of(report: Report) -> tuple[SnapshotDevice, ...]:
    """Return the devices of a snapshot; none in a report without one."""
    memory = report.summary.memory
    return () if memory is None else memory.devices


def use_label(category: str) -> str:
    """Return the label of a use, such as ``optimizer state``; empty if unknown.

    Args:
        category: As in :class:`~profkit.model.memory_summary.MemoryUse`.
    """
    return _USES.get(category, visible(category))


def place_of(site: AllocationSite) -> str:
    """Return the label of a site without a source line."""
    if site.is_before_recording:
        return "allocated before recording"
    if site.category == "gradient" and not site.stack:
        return "in a backward pass"
    return visible(site.location.function or "") or NO_SOURCE_LINE


def series_rows(report: Report) -> list[MemorySeriesRow]:
    """Return a monitored program's memory over its steps; figures that stay 0 are left out."""
    memory = report.summary.memory
    if memory is None:
        return []
    rows = (_series(memory, label, figure) for figure, label in STEP_FIGURES.items())
    return [row for row in rows if len(row.steps) > 1 and row.highest_bytes]


def _series(memory: MemorySummary, name: str, figure: str) -> MemorySeriesRow:
    values = [(step.step, n) for step in memory.steps if (n := getattr(step, figure)) is not None]
    steps = tuple(step for step, _ in values)
    return MemorySeriesRow(name + _until(memory, steps), steps, tuple(n for _, n in values))


def _until(memory: MemorySummary, steps: Sequence[int]) -> str:
    """`` (to step 81)`` if measuring ended well before the program."""
    n_steps = memory.n_monitored_steps or 0
    if not steps or steps[-1] >= _COVERED_SHARE * n_steps:
        return ""
    return f" (to step {format_count(steps[-1])})"


def monitored_steps(memory: MemorySummary) -> str:
    """``98 monitored steps``, and the last step that was measured if it is well before the end."""
    until = _until(memory, [step.step for step in memory.steps])
    return f"{counted(memory.n_monitored_steps or 0, 'monitored step')}{until}"


def device_series_rows(report: Report) -> list[MemorySeriesRow]:
    """Return the memory of a snapshot's devices over its history.

    A device without memory, or with a history of one entry, has no row.
    """
    devices = [device for device in devices_of(report) if _has_series(device)]

    rows = []
    for device in devices:
        entries = tuple(point.entry for point in device.timeline)
        active = tuple(point.active_bytes for point in device.timeline)
        rows.append(MemorySeriesRow(f"{device.device} active", entries, active))
        # With several devices, one row for each keeps the table short.
        if len(devices) == 1:
            reserved = tuple(point.reserved_bytes for point in device.timeline)
            rows.append(MemorySeriesRow(f"{device.device} reserved", entries, reserved))
    return rows


def _has_series(device: SnapshotDevice) -> bool:
    has_memory = any(point.active_bytes or point.reserved_bytes for point in device.timeline)
    return has_memory and device.has_peak


def allocation_tables(report: Report, *, everything: bool) -> list[AllocationTable]:
    """List each device's live blocks when an allocation failed, else at its peak, else at the end.

    Args:
        everything: Whether to include all three.
    """
    tables: list[AllocationTable] = []
    for device in devices_of(report):
        # Peak and end often have the same blocks: a table is shown once.
        distinct: dict[tuple[AllocationSite, ...], AllocationTable] = {}
        for table in _tables(device):
            distinct.setdefault(table.sites, table)
        distinct.pop((), None)
        tables += list(distinct.values())[: None if everything else 1]
    return tables


def _tables(device: SnapshotDevice) -> Iterator[AllocationTable]:
    for oom in device.oom[-1:]:
        title = f"{device.device}: allocation of {format_bytes(oom.bytes)} failed"
        yield AllocationTable(title, oom.active_bytes or device.active_bytes, oom.sites)
    if device.has_peak:
        title = f"{device.device} at the peak"
        yield AllocationTable(title, device.at_peak_bytes, device.peak_sites)
    yield AllocationTable(f"{device.device} at the end", device.active_bytes, device.top_sites)


def memory_sentences(report: Report) -> list[str]:
    """Return the headline of a report without times; empty if it has no memory."""
    memory = report.summary.memory
    if report.source.kind == "snapshot" and (memory is None or not memory.devices):
        return ["The snapshot contains no device memory."]
    if memory is None:
        return []

    if memory.devices:
        return list(_snapshot_sentences(memory))
    changes = " and ".join(row.change for row in series_rows(report)[:2])
    steps = counted(memory.n_monitored_steps or 0, "step")
    return [f"Over {steps} {changes}."] if changes else []


def _snapshot_sentences(memory: MemorySummary) -> Iterator[str]:
    # The fullest device is the first to run out of memory.
    failed = [device for device in memory.devices if device.oom]
    fullest = max(failed or memory.devices, key=lambda device: device.reserved_bytes)
    if failed:
        yield _oom_sentence(fullest, fullest.oom[-1], len(failed) - 1)
    yield _describe_filling(fullest, len(memory.devices))
    if fullest.has_peak and not failed:
        active, reserved = format_bytes(fullest.active_bytes), format_bytes(fullest.reserved_bytes)
        yield f"At the end {active} are active and {reserved} reserved."


def _describe_filling(device: SnapshotDevice, n_devices: int) -> str:
    """Return what fills a device at its peak, or without a history when the snapshot was taken."""
    total = device.at_peak_bytes
    of_several = f", the fullest of {n_devices} devices," if n_devices > 1 else ""
    name, size = f"{device.device}{of_several}", format_bytes(total)
    moment = f"peak of {name} is" if device.has_peak else f"active on {name} are"
    if contents := _list_contents(device, total):
        return f"By stacks, the {size} {moment} {listed(contents)}."

    site = next((site for site in device.peak_sites if site.location.file), None)
    with_stack = sum(site.bytes for site in device.peak_sites if site.location.file)
    if site is not None and with_stack >= _MIN_USE_SHARE * total > 0:
        share = format_share(site.bytes / total)
        return f"The {size} {moment} of many lines, the largest {share}{at(site.location)}."

    reserved, active = device.reserved_bytes, device.active_bytes
    free = f"{format_bytes(reserved - active)} ({format_share(1 - active / max(reserved, 1))})"
    return (
        f"Of the {format_bytes(reserved)} reserved on {name} {free} are free, and no stack tells "
        f"what the other {format_bytes(active)} are."
    )


def _list_contents(device: SnapshotDevice, total: int) -> list[str]:
    """List what the live memory is: uses with their lines, other lines, and what is not known.

    Empty where nothing that is known is large.
    """
    uses = [(use.bytes, use.category) for use in device.peak_uses if use_label(use.category)]
    known = [
        (n_bytes, f"{use_label(category)}{_lines_of(device, category)}")
        for n_bytes, category in uses
    ]
    labelled = {category for _, category in uses}
    unlabelled = [site for site in device.peak_sites if site.category not in labelled]
    known += [
        (site.bytes, f"from {visible(site.location.place)}")
        for site in unlabelled
        if site.location.file
    ]
    known.sort(key=lambda content: -content[0])

    # Blocks with a stack of an earlier history count for their line or use alone.
    without_stack = [site for site in unlabelled if not site.location.file]
    earlier = sum(site.bytes for site in without_stack if site.is_before_recording)
    others = sum(site.bytes for site in without_stack) - earlier
    unknown = [(earlier, "from before the recording"), (others, "without a stack")]

    smallest = max(1, round(_MIN_USE_SHARE * total))
    shown = [content for content in known if content[0] >= smallest][:_MAX_CONTENTS]
    if not shown and earlier < _MAJORITY * total:
        return []
    shown += [content for content in unknown if content[0] >= smallest]
    return [f"{format_share(min(n_bytes / total, 1.0))} {text}" for n_bytes, text in shown]


def _lines_of(device: SnapshotDevice, category: str) -> str:
    """`` (optimizers.py:82, :84)``: the lines that allocate most of a use; empty if unknown."""
    places = [
        (base_name(site.location.file), site.location.line)
        for site in device.peak_sites
        if site.category == category and site.location.file and site.location.line is not None
    ]
    # The name of a file is written once for consecutive lines.
    shown = [
        f":{line}" if n and places[n - 1][0] == file else f"{visible(file)}:{line}"
        for n, (file, line) in enumerate(places[:_MAX_USE_LINES])
    ]
    return f" ({', '.join(shown)})" if shown else ""


def _oom_sentence(device: SnapshotDevice, oom: OomSummary, n_others: int) -> str:
    """Return that a device ran out of memory, where, and why."""
    place = at(oom.location) if oom.location else ""
    free = ""
    if oom.device_free_bytes is not None:
        free = f" with {format_bytes(oom.device_free_bytes)} free on the device"

    reason = _OOM_REASONS.get(oom.reason or "", "")
    if oom.reason == "fragmentation" and oom.largest_usable_block_bytes is not None:
        reason += f" of at most {format_bytes(oom.largest_usable_block_bytes)}"
    others = f" and {counted(n_others, 'other device')}" if n_others else ""
    failed = f"an allocation of {format_bytes(oom.bytes)} failed{free}{reason}"
    return f"{device.device}{others} ran out of memory{place}: {failed}."


def has_oom(report: Report) -> bool:
    """Tell whether an allocation failed in a snapshot; the headline then says nothing else."""
    return any(device.oom for device in devices_of(report))


def no_memory_findings(report: Report) -> str:
    """Return the sentence for a report on memory whose findings have no cost."""
    if report.findings:
        return "All findings are notes."
    memory = report.summary.memory
    if memory is not None and memory.n_leaks == 0:
        text = no_leak_text(memory)
        return f"{text[0].upper()}{text[1:]}."
    devices = devices_of(report)
    if devices and not any(device.n_trace_events or _has_stacks(device) for device in devices):
        return needs.HISTORY.remedy
    return with_skipped_checks(NO_PROBLEMS, report)


def _has_stacks(device: SnapshotDevice) -> bool:
    """Tell whether a live block has a source line."""
    return any(site.location.file for site in device.top_sites)


def no_leak_text(memory: MemorySummary) -> str:
    """Return the text on a monitored program without a leak."""
    unexplained = memory.unexplained_per_step_bytes or 0
    if unexplained < _MIN_UNEXPLAINED_BYTES:
        until = _until(memory, [step.step for step in memory.steps])
        return _describe_past_growth(memory) or f"no memory grows with every step{until}"
    return (
        f"the process grows by {format_bytes(unexplained)} per step; it is not known whether "
        "Python objects or a library retain it"
    )


def _describe_past_growth(memory: MemorySummary) -> str:
    """Say when the process has grown, and how much of it is free; empty if it hardly has."""
    measured = [step for step in memory.steps if step.host_rss_bytes is not None]
    # The system does not tell, or no step ended while memory was monitored.
    if not measured:
        return ""

    sizes = [step.host_rss_bytes or 0 for step in measured]
    grown = sizes[-1] - sizes[0]
    if grown < max(_MIN_PAST_BYTES, _MIN_PAST_SHARE * sizes[0]):
        return ""

    most = sizes[0] + _MOST_OF_GROWTH * grown
    last = next(step.step for step, n in zip(measured, sizes, strict=True) if n >= most)
    is_over = last <= _EARLY_SHARE * measured[-1].step
    text = "host memory grew to the end, and what keeps it was not found"
    if is_over:
        text = f"host memory has hardly grown since step {format_count(last)}"

    # Free blocks need not be resident: what is allocated now is no part of them.
    free = [step.heap_free_bytes for step in measured if step.heap_free_bytes is not None]
    allocated = [step.heap_bytes for step in measured if step.heap_bytes is not None]
    allocated_more = max(allocated[-1] - allocated[0], 0) if allocated else 0
    freed = min(free[-1] - free[0], grown - allocated_more) if free else 0
    if freed < _MIN_FREED_SHARE * grown:
        return text
    return f"{text}; {format_bytes(freed)} of the growth is freed memory that C's allocator keeps"


def memory_facts(report: Report, *, everything: bool) -> Iterator[str]:
    """Yield figures on memory, a line each.

    Args:
        everything: Whether to include regions and all lines that cause fragmentation.
    """
    memory = report.summary.memory
    if memory is None:
        return

    if memory.peak:
        peaks = (f"{format_bytes(peak.bytes)} on {peak.device}" for peak in memory.peak)
        yield f"peak memory {', '.join(peaks)}"
    for device in memory.devices:
        yield from describe_device(device, everything=everything)

    if memory.host_peak is not None:
        yield _host_peak_text(memory.host_peak)
    if memory.n_monitored_steps:
        yield "; ".join(_monitoring(report, memory))


def _host_peak_text(peak: HostPeak) -> str:
    """Return when the process had its peak, which no end of a step shows."""
    until = "" if peak.until_step is None else f", before the end of step {peak.until_step}"
    return (
        f"peak of the process {format_bytes(peak.bytes)}, after step {peak.after_step}{until}; at "
        f"the ends of steps it has {format_bytes(peak.resident_bytes)} at most"
    )


def _monitoring(report: Report, memory: MemorySummary) -> Iterator[str]:
    steps = counted(memory.n_monitored_steps or 0, "step")
    # A table of the series has these figures already.
    rows = [] if shows_series(report) else series_rows(report)
    changes = ", ".join(row.change for row in rows)
    yield f"memory over {steps}: {changes}" if changes else f"memory monitored over {steps}"
    if memory.n_leaks == 0:
        yield no_leak_text(memory)
    if memory.monitoring_share is not None:
        records = memory.monitoring_bytes
        more = f" and {format_bytes(records)}" if records else ""
        yield f"monitoring overhead {format_share(memory.monitoring_share)}{more}"


def shows_series(report: Report) -> bool:
    """Tell whether memory over time is shown in rows: it leaks, or the report has no times."""
    memory = report.summary.memory
    if memory is None or not memory.steps:
        return False
    return bool(memory.n_leaks) or report.summary.breakdown is None
