"""The report in a sentence or two, in plain words, for every renderer to begin with."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from profkit.engine.wording import counted
from profkit.model.device_summary import DeviceSummary
from profkit.model.finding import Finding
from profkit.model.report import Breakdown, OpSummary, Report, Summary
from profkit.names import visible
from profkit.present.memory_text import has_oom, memory_facts, memory_sentences, no_memory_findings
from profkit.units import format_bytes, format_count, format_ns, format_share

_LABELS: Final = {
    "compute": "compute",
    "communication": "communication",
    "copy": "copies",
    "idle-sync": "idle: host waits in a sync",
    "idle-data": "idle: waits for data",
    "idle-allocator": "idle: allocating memory",
    "idle-overhead": "idle: profiler overhead",
    "idle-host": "idle: host is too slow",
    "idle-launch": "idle: launch under way",
    "idle-device": "idle: queued work waits",
    "idle-unknown": "idle: cause unknown",
    "operators": "operators",
    "backward": "backward",
    "optimizer": "optimizer",
    "data": "waits for data",
    "python": "Python between operators",
}
_MEANWHILE: Final = {
    "idle-sync": "the host waits in a sync",
    "idle-data": "the program waits for data",
    "idle-allocator": "memory is allocated",
    "idle-overhead": "the profiler holds the host",
    "idle-host": "the host has not launched enough",
    "idle-launch": "launches are under way",
    "idle-device": "queued work waits for other work",
    "idle-unknown": "nothing in the recording says why",
}
_HOST_WORK: Final = ("operators", "backward", "optimizer")
_WORTH_CHANGING_SHARE: Final = 0.01
"""A cost below this is no headline, even if it is the biggest."""
_WORTH_SAYING_SHARE: Final = 0.1
"""Idle time below this needs no explanation in a verdict."""
_MOST_WAITS: Final = 5
"""Lines that waited for the device which are told without being asked for."""
_MOST_OF_IT_SHARE: Final = 0.5
"""Steps that are less of the recording than this may not be what the reader thinks."""
_ID: Final = re.compile(r"(?P<family>[A-Z]{3})(?P<number>\d{3})")
_BASIS: Final = {"measured": "", "upper-bound": "up to ", "estimate": "about "}


def part_label(kind: str) -> str:
    """A few words for a part of the steps' time.

    Args:
        kind: As in :class:`~profkit.model.report.TimePart`.
    """
    return _LABELS.get(kind, visible(kind))


def idle_explanation(kind: str) -> str:
    """What the host did while a device was idle, in a few words.

    Args:
        kind: A part of the time in which no device worked, such as ``idle-sync``.
    """
    return _MEANWHILE.get(kind, part_label(kind))


def device_noun(report: Report) -> str:
    """What to call the devices of a report: ``GPU``, or ``device`` for other accelerators."""
    kinds = {device.device.partition(":")[0] for device in report.summary.devices}
    return "GPU" if kinds and kinds <= {"cuda", "hip", "xpu", "mps"} else "device"


def cost_share(report: Report, finding: Finding) -> float | None:
    """A finding's time as a share of the breakdown's: of a step, or of the whole without steps.

    Returns:
        None where one of the two is not known.
    """
    breakdown = report.summary.breakdown
    if finding.cost.per_step_ns is not None and breakdown and breakdown.per_step_ns:
        return finding.cost.per_step_ns / breakdown.per_step_ns
    whole_ns = breakdown.total_ns if breakdown else report.summary.window_ns
    return finding.cost.ns / whole_ns if finding.cost.ns is not None and whole_ns else None


def cost_text(report: Report, finding: Finding) -> str:
    """What a finding costs: ``up to 65.1 ms a step (37%), 1.50 MiB a step``; empty if nothing."""
    cost = finding.cost
    basis = _BASIS[cost.basis]
    parts = []
    if cost.per_step_ns:
        parts.append(f"{basis}{format_ns(cost.per_step_ns)} a step{_share(report, finding)}")
    elif cost.ns:
        parts.append(f"{basis}{format_ns(cost.ns)}{_share(report, finding)}")
    if cost.per_step_bytes:
        parts.append(f"{basis}{format_bytes(cost.per_step_bytes)} a step")
    elif cost.bytes:
        parts.append(f"{basis}{format_bytes(cost.bytes)}")
    return ", ".join(parts)


def _share(report: Report, finding: Finding) -> str:
    share = cost_share(report, finding)
    return "" if share is None else f" ({format_share(share)})"


def headline(report: Report) -> str:
    """What the report comes down to: how long, how much of it is work, and what to change first."""
    breakdown = report.summary.breakdown
    of_memory = [] if breakdown is not None else memory_sentences(report)
    sentences = of_memory or [_length_and_work(report, breakdown)]
    if not (of_memory and has_oom(report)):
        sentences += _biggest_costs(report) or [_nothing_found(report)]
    troubled = [each for each in report.health if each.severity != "note"]
    if troubled:
        sentences.append(f"Trust the figures less: {_inline(troubled[0].title)}.")
    return " ".join(sentences)


def _length_and_work(report: Report, breakdown: Breakdown | None) -> str:
    if breakdown is None or not breakdown.total_ns:
        return "There is nothing in the recording whose time could be told apart."
    if breakdown.per_step_ns is None and breakdown.on_device:
        busy = format_share(_device_work(breakdown))
        whole = format_ns(breakdown.total_ns)
        verb = f"{_devices(report)} works {busy} of the {whole} from its first work to its last"
        return f"The recording has no steps; {verb}."
    if breakdown.per_step_ns is None:
        start = f"The recording is {format_ns(breakdown.total_ns)} long and has no steps"
    else:
        start = "The step takes" if breakdown.n_steps == 1 else "Each step takes"
        start = f"{start} {format_ns(breakdown.per_step_ns)}"
    window_ns = report.summary.window_ns
    covered = breakdown.total_ns / window_ns if window_ns else 1.0
    end = "."
    if covered < _MOST_OF_IT_SHARE:
        end = f"; steps are {format_share(covered)} of the recording."
    if not breakdown.on_device:
        work = sum(part.share for part in breakdown.parts if part.kind in _HOST_WORK)
        where = "without any work of a device" if report.source.devices else "all on the CPU"
        return f"{start}, {where}; operators run {format_share(work)} of it{end}"
    work = _device_work(breakdown)
    return f"{start}; {_devices(report)} works {format_share(work)} of it{end}"


def _device_work(breakdown: Breakdown) -> float:
    """The share in which a device worked."""
    return sum(part.share for part in breakdown.parts if not part.kind.startswith("idle-"))


def _devices(report: Report) -> str:
    several = len(report.summary.devices) > 1
    return f"at least one {device_noun(report)}" if several else f"the {device_noun(report)}"


def breakdown_title(report: Report) -> str:
    """What a breakdown covers: ``A step``, or what stands for the recording as a whole."""
    breakdown = report.summary.breakdown
    if breakdown is None or (not breakdown.on_device and breakdown.per_step_ns is None):
        return "The whole recording"
    if breakdown.per_step_ns is None:
        return f"From the {device_noun(report)}'s first work to its last"
    return "A step"


def _biggest_costs(report: Report) -> list[str]:
    """The costliest finding in time, and the costliest in memory that is no mere note."""
    in_time = next((each for each in report.findings if _matters(report, each)), None)
    in_bytes = next(
        (each for each in report.findings if each.cost.bytes and each.severity != "note"), None
    )
    sentences = []
    if in_time is not None:
        sentences.append(f"The biggest cost: {_named(report, in_time)}.")
    if in_bytes is not None and in_bytes is not in_time:
        said = _named(report, in_bytes)
        start = said[:1].upper() + said[1:] if in_time is None else f"And {said}"
        sentences.append(f"{start}.")
    return sentences


def _matters(report: Report, finding: Finding) -> bool:
    share = cost_share(report, finding)
    return bool(finding.cost.ns) and (share is None or share >= _WORTH_CHANGING_SHARE)


def _named(report: Report, finding: Finding) -> str:
    title = _inline(finding.title)
    place = f" at {visible(finding.locations[0].place)}" if finding.locations else ""
    return f"{title}{place}, {cost_text(report, finding)}"


def _inline(title: str) -> str:
    """A title within a sentence: without its capital, unless that is a name's or a shorthand's."""
    text = visible(title).rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def _nothing_found(report: Report) -> str:
    if report.summary.breakdown is None and memory_sentences(report):
        return no_memory_findings(report)
    if report.findings:
        small = any(finding.cost.ns for finding in report.findings)
        cost = "takes a hundredth of it" if small else "has a cost that could be measured"
        said = f"No finding {cost}."
    elif report.unchecked:
        said = "The rules that could look found nothing to change."
    else:
        said = "No rule found anything to change."
    breakdown = report.summary.breakdown
    idle = [part for part in breakdown.parts if part.kind.startswith("idle-")] if breakdown else []
    longest = max(idle, key=lambda part: part.ns, default=None)
    if longest is not None and longest.share >= _WORTH_SAYING_SHARE:
        share = format_share(longest.share)
        what = idle_explanation(longest.kind)
        return f"{said} The {device_noun(report)} is idle {share} of the time while {what}."
    return said


def origin(report: Report) -> list[str]:
    """Where the report comes from, in a few words each: devices, torch, rank."""
    source = report.source
    words = sorted({name for name in source.devices if name})
    if source.torch:
        words.append(f"torch {source.torch}")
    if source.rank is not None:
        words.append(f"rank {source.rank}{f' of {source.world_size}' if source.world_size else ''}")
    return words


def facts(report: Report, *, everything: bool) -> list[str]:
    """What was counted, a sentence each: devices and memory, and everything else if asked for.

    Args:
        everything: Whether to tell also of syncs, copies, regions and single devices.
    """
    summary = report.summary
    lines = [
        _device_fact(device)
        for device in summary.devices
        if device.span_ns and (everything or len(summary.devices) > 1 or device.communication_ns)
    ]
    lines += memory_facts(report, everything=everything)
    lines += _waits(summary, None if everything else _MOST_WAITS)
    return [*lines, *_counts(report)] if everything else lines


def _device_fact(device: DeviceSummary) -> str:
    parts = [("compute", device.compute_ns), ("copies", device.memcpy_ns)]
    if device.communication_ns:
        parts.append(("communication", device.communication_ns))
        parts.append(("compute and communication at once", device.overlap_ns))
    shares = ", ".join(f"{name} {format_share(ns / device.span_ns)}" for name, ns in parts)
    busy = format_share(device.busy_ns / device.span_ns)
    return f"{device.device} busy {busy} of the {format_ns(device.span_ns)} it was in use: {shares}"


def _waits(summary: Summary, most: int | None) -> Iterator[str]:
    """Where the host waited for the device, as it was heard while the program ran."""
    waits = summary.sync_sites or ()
    for wait in waits[:most]:
        place = "a thread without the program's code" if not wait.location else wait.location.place
        allowed = "" if wait.allowed_reason is None else f", allowed: {wait.allowed_reason}"
        times = counted(wait.n_calls, "time")
        yield f"{place} waited for the device {times}: {wait.operation}{allowed}"
    left = waits[most:] if most is not None else ()
    if left:
        n_calls = format_count(sum(wait.n_calls for wait in left))
        yield f"{counted(len(left), 'more line')} waited for the device, {n_calls} times together"


def _counts(report: Report) -> Iterator[str]:
    summary = report.summary
    for sync in summary.syncs:
        yield f"{sync.call}: {format_count(sync.n_calls)} calls, {format_ns(sync.total_ns)}"
    for copy in summary.copies:
        size = "" if copy.bytes is None else f", {format_bytes(copy.bytes)}"
        calls = format_count(copy.n_calls)
        yield f"{copy.kind}: {calls} copies, {format_ns(copy.total_ns)}{size}"
    for region in summary.regions:
        calls = format_count(region.n_calls)
        yield f"region {region.name}: {calls} entries, {format_ns(region.total_ns)}"


def busiest_ops(report: Report) -> tuple[bool, list[OpSummary]]:
    """Operators by the device work that they launch themselves, else by their own host time.

    The report has them by total time, in which an operator counts again all that it calls.

    Returns:
        Whether device time ranks them, and the operators.
    """
    every = report.summary.top_ops
    launching = [op for op in every if op.device_ns]
    if launching:
        return True, sorted(launching, key=lambda op: (-op.device_ns, op.name))
    return False, sorted(every, key=lambda op: (-op.self_ns, op.name))


def unchecked_by_reason(report: Report, *, everything: bool = False) -> list[tuple[str, str]]:
    """What could not be checked: each reason with what to do, and the ids of its rules.

    Args:
        everything: Whether to name each rule, also of those that follow each other:
            ``MEM003 to MEM005`` otherwise.
    """
    groups: dict[str, list[str]] = {}
    for each in report.unchecked:
        groups.setdefault(f"{each.reason} {each.remedy}", []).append(each.rule)
    named = ", ".join if everything else _ranges
    return [(reason, named(dict.fromkeys(rules))) for reason, rules in groups.items()]


def _ranges(rules: Iterable[str]) -> str:
    """Ids with those that follow each other drawn together: ``MEM003 to MEM005, SYN001``."""
    runs: list[list[str]] = []
    for rule in rules:
        if runs and _follows(runs[-1][-1], rule):
            runs[-1].append(rule)
        else:
            runs.append([rule])
    return ", ".join(
        f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run)  # noqa: PLR2004  (two are no range)
        for run in runs
    )


def _follows(before: str, rule: str) -> bool:
    """Whether two ids are of one family and follow each other."""
    first, second = _ID.fullmatch(before), _ID.fullmatch(rule)
    if first is None or second is None or first["family"] != second["family"]:
        return False
    return int(second["number"]) == int(first["number"]) + 1


def overhead_text(overhead_ratio: float) -> str:
    """How much longer the recording made the program, in a sentence.

    Args:
        overhead_ratio: As in :class:`~profkit.model.report.Source`.
    """
    if overhead_ratio >= 1:
        return (
            f"While it was recorded the program took about {1 + overhead_ratio:.1f} times as long."
        )
    return f"While it was recorded the program took about {format_share(overhead_ratio)} longer."
