"""The headline of a report, and the labels and facts that every renderer shows."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import mean, median
from typing import Final

from profkit.engine.wording import counted
from profkit.model.capture_info import CpuTime
from profkit.model.device_summary import DeviceSummary
from profkit.model.finding import Cost, Finding
from profkit.model.location import Location
from profkit.model.report import (
    Breakdown,
    CopySummary,
    FunctionSummary,
    KernelSummary,
    OpSummary,
    RegionSummary,
    Report,
    RunCost,
    SampledSummary,
    Summary,
    SyncSummary,
)
from profkit.model.torch_names import DEVICE_OPERATOR
from profkit.names import middle_cut, visible
from profkit.present.critical_path import main_name, main_share, path_label
from profkit.present.memory_text import (
    has_oom,
    memory_facts,
    memory_sentences,
    no_memory_findings,
    no_problems,
)
from profkit.present.ranks import job_headline
from profkit.units import format_bytes, format_count, format_ns, format_number, format_share

_IDLE: Final = "idle-"
_IDLE_CAUSES: Final = {
    "idle-sync": "host blocked in a sync",
    "idle-data": "waiting for data",
    "idle-allocator": "waiting for memory allocation",
    "idle-overhead": "profiler overhead",
    "idle-host": "waiting for CPU launches",
    "idle-launch": "launch latency",
    "idle-device": "between queued kernels",
    "idle-unknown": "unknown cause",
}
_LABELS: Final = {
    "compute": "compute",
    "communication": "exposed communication",
    "copy": "copies",
    "unrecorded": "unrecorded GPU work",
    **{kind: f"GPU idle: {cause}" for kind, cause in _IDLE_CAUSES.items()},
    "operators": "operators",
    "backward": "backward",
    "optimizer": "optimizer",
    "data": "waiting for data",
    "python": "outside operators",
}
_HOST_WORK: Final = ("operators", "backward", "optimizer")
_NOTABLE_OVERHEAD: Final = 0.05
_MIN_FINDING_SHARE: Final = 0.01
"""A smaller cost is not in the headline, even if it is the highest."""
_MIN_UNRECORDED_SHARE: Final = 0.05
"""Less unrecorded work of a device is not in the headline."""
_MAX_NAME: Final = 40
_MIN_PART_SHARE: Final = 0.1
"""A smaller part of the critical path is not in the headline."""
MIN_SAMPLES: Final = 20
"""Fewer samples of running threads name no function in the headline, nor on a screen of text."""
_MIN_IDLE_SHARE: Final = 0.1
"""Less idle time is not explained in the headline."""
_MIN_TOLD_SHARE: Final = 0.5
"""The share of the time of matmuls whose FLOPs have to be known, so that their sum says something.
"""
_MIN_KNOWN_SHARE: Final = 0.99
_MAX_SYNC_SITES: Final = 5
"""Lines with syncs that are listed without ``--verbose``."""
_MIN_SKEW: Final = 1.5
"""The ratio of mean to median step time above which the mean describes no step."""
_NOTHING_RECORDED: Final = "nothing-recorded"
_MIN_STEPS_SHARE: Final = 0.5
"""If steps cover less of the recording, the headline says so."""
_BASIS: Final = {"measured": "", "replay": "", "upper-bound": "up to ", "estimate": "about "}
_HOST_WAITS: Final = ("data", "communication")
_MIN_WAITING_SHARE: Final = 0.5
"""A host that waits less is not in the headline."""
_MIN_CHILDREN_SHARE: Final = 0.1
_MIN_DELAYED_SHARE: Final = 0.1
"""If the thread was without a core for less, that is not among the facts."""
_NUMBER_DIGITS: Final = 3
_NO_TIME: Final = "no time: hidden by other work"


def part_label(kind: str) -> str:
    """The label of a part of the step time, by its kind as in ``TimePart``."""
    return _LABELS.get(kind, visible(kind))


def idle_explanation(kind: str) -> str:
    """The cause of a device's idle time: ``waiting for data`` for ``idle-data``."""
    return _IDLE_CAUSES.get(kind, part_label(kind))


def device_noun(report: Report) -> str:
    """``GPU``, or ``device`` for other accelerators."""
    kinds = {device.device.partition(":")[0] for device in report.summary.devices}
    return "GPU" if kinds and kinds <= {"cuda", "hip", "xpu", "mps"} else "device"


def step_time(report: Report) -> str:
    """The mean step time and its range, ``174 ms (160 ms to 200 ms)``; empty without steps.

    The range is left out if both ends read the same. Where the host runs ahead of the devices:
    ``95.7 ms on the GPU (95.1 ms to 96.2 ms) and 78.8 ms on the host, which runs ahead``.
    """
    breakdown = report.summary.breakdown
    if breakdown is None or breakdown.per_step_ns is None:
        return ""
    text, on_host = format_ns(breakdown.per_step_ns), host_step_time(report)
    if on_host:
        text += f" on the {device_noun(report)}"
    if spread := step_range(report):
        text += f" ({spread})"
    return f"{text} and {on_host}, which runs ahead" if on_host else text


def host_step_time(report: Report) -> str:
    """``78.8 ms on the host``, if the step time is that of the devices; else empty."""
    breakdown = report.summary.breakdown
    if breakdown is None or breakdown.host_per_step_ns is None:
        return ""
    return f"{format_ns(breakdown.host_per_step_ns)} on the host"


def incomplete_steps(report: Report) -> str:
    """``1 incomplete step excluded``; empty if the window cut off no step."""
    n = report.summary.n_incomplete_steps
    return f"{counted(n, 'incomplete step')} excluded" if n else ""


def step_range(report: Report) -> str:
    """The shortest and longest step, ``160 ms to 200 ms``; empty if both read the same.

    With the median where a few long steps dominate the mean: ``median 152 ms, 146 ms to 4.49 s``.
    """
    lengths = [step.time_ns for step in report.summary.steps] or [0]
    low, high = format_ns(min(lengths)), format_ns(max(lengths))
    if low == high:
        return ""
    middle = median(lengths)
    about = f"median {format_ns(middle)}, " if mean(lengths) > _MIN_SKEW * middle else ""
    return f"{about}{low} to {high}"


def cost_share(report: Report, finding: Finding) -> float | None:
    """A finding's time as a share of the step time, or of the recording without steps.

    In the report on a job, it is the job's step time.

    Returns:
        None if either is unknown.
    """
    slowdown = report.collectives.slowdown if report.collectives is not None else None
    if slowdown is not None and slowdown.n_steps and finding.cost.per_step_ns is not None:
        return finding.cost.per_step_ns / slowdown.recorded_ns
    breakdown = report.summary.breakdown
    if finding.cost.per_step_ns is not None and breakdown and breakdown.per_step_ns:
        return finding.cost.per_step_ns / breakdown.per_step_ns
    total_ns = breakdown.total_ns if breakdown else report.summary.window_ns
    return finding.cost.ns / total_ns if finding.cost.ns is not None and total_ns else None


def cost_text(report: Report, finding: Finding) -> str:
    """A finding's cost, ``up to 65.1 ms per step (37%), 1.50 MiB per step``; empty if unknown.

    Where a replay saves nothing, since the steps wait for other work meanwhile, it says so.
    """
    cost = finding.cost
    if cost.ns == 0 and cost.high_ns is not None:
        return _most_text(report, finding, cost.high_ns) if cost.high_ns else _NO_TIME
    basis = _BASIS[cost.basis]
    share = cost_share(report, finding)
    of_step = "" if share is None else f" ({format_share(share)})"
    parts = []
    if cost.per_step_ns:
        parts.append(f"{basis}{_time_range(cost, cost.per_step_ns)} per step{of_step}")
    elif cost.ns:
        parts.append(f"{basis}{_time_range(cost, cost.ns)}{of_step}")
    if cost.per_step_bytes:
        parts.append(f"{basis}{format_bytes(cost.per_step_bytes)} per step")
    elif cost.bytes:
        parts.append(f"{basis}{format_bytes(cost.bytes)}")
    return ", ".join(parts)


def _most_text(report: Report, finding: Finding, high_ns: int) -> str:
    """The upper end of a cost whose lower end is 0."""
    n_steps = max(1, len(report.summary.steps))
    most = replace(finding.cost, ns=high_ns, low_ns=None, high_ns=None, basis="upper-bound")
    if most.per_step_ns is not None:
        most = replace(most, per_step_ns=round(high_ns / n_steps))
    return cost_text(report, replace(finding, cost=most))


def _time_range(cost: Cost, ns: int) -> str:
    """A time, up to the one with hidden latencies if that differs as it is written.

    Args:
        ns: The cost, in the whole window or per step.
    """
    low = format_ns(ns)
    high = format_ns(round(ns * cost.high_ns / cost.ns)) if cost.high_ns and cost.ns else low
    if high == low or cost.basis == "upper-bound":
        return high
    number, _, unit = low.partition(" ")
    return f"{number if unit == high.partition(' ')[2] else low} to {high}"


def headline(report: Report) -> str:
    """The step time, how busy the device is, and the finding with the highest cost.

    Of a trace in which nothing was recorded, that and what to do.
    """
    nothing = next((each for each in report.health if each.name == _NOTHING_RECORDED), None)
    if nothing is not None:
        return visible(f"{nothing.message} {nothing.fix}")
    breakdown = report.summary.breakdown
    on_memory = [] if breakdown is not None else memory_sentences(report)
    sentences = [*job_headline(report), *(on_memory or [_time_and_work(report, breakdown)])]
    incomplete = _unrecorded_work(report, breakdown)
    sentences += [incomplete] if incomplete else []
    sentences += _waiting(report)
    if not (on_memory and has_oom(report)):
        sentences += _largest_part(report)
        sentences += _highest_costs(report) or [_without_costs(report)]
    faults = [each for each in report.health if each.severity != "note"]
    if faults and not incomplete:
        sentences.append(f"Figures are less reliable: {_inline(faults[0].title)}.")
    return " ".join(sentences)


def _largest_part(report: Report) -> list[str]:
    """The largest part of the critical path, if it exceeds what the findings cost.

    That of one rank does not tell what a job waits for.
    """
    path = report.summary.critical_path
    if path is None or report.ranks:
        return []
    shares = [cost_share(report, finding) or 0.0 for finding in report.findings]
    least = max(_MIN_PART_SHARE, *shares, 0.0)
    per_step = "" if path.per_step_ns is None else " per step"
    cold_share = path.cold_start_ns / path.total_ns
    if cold_share > least:
        share = f"{format_share(cold_share)}{' of all steps' if per_step else ''}"
        cold = f"Cold start takes {format_ns(path.cold_start_ns)} ({share})"
        return [f"{cold}: launches that first load code and libraries."]
    line = next((each for each in path.lines if each.kind != "unrecorded"), None)
    if line is None or line.share <= least or (line.kind == "python" and _waiting(report)):
        return []
    if line.kind == "kernel" and least > _MIN_PART_SHARE:
        return []  # kernels are meant to take most of a step; a finding says what is not
    main, share = middle_cut(main_name(line), _MAX_NAME), main_share(line)
    mostly = f", {f'mostly {main} ({share})' if share else main}" if main else ""
    place = f" at {visible(line.location.place)}" if line.location.file else ""
    if line.kind == "python" and not place and (function := _sampled_function(report)):
        mostly = f", sampled most in {function}"
    time = format_ns(line.mean_ns)
    what = f"{path_label(line.kind)}{place}{mostly}"
    of_path = f"{time}{per_step} ({format_share(line.share)})"
    return [f"Largest part of the critical path: {what}, {of_path}."]


def _sampled_function(report: Report) -> str:
    """``tokenize at service.py:31 (62%)``; empty where no function stands out.

    Where no stacks were recorded, those that were sampled tell more than the names of regions.
    """
    sampled = report.summary.sampled
    if sampled is None or n_running(sampled) < MIN_SAMPLES:
        return ""
    first = next((each for each in sampled.functions if each.location.file), None)
    if first is None or first.share < _MIN_PART_SHARE:
        return ""
    place = visible(first.location.place)
    return f"{function_name(first)} at {place} ({format_share(first.share)})"


def n_running(sampled: SampledSummary) -> int:
    """The number of samples of running threads."""
    return sum(each.n_samples for each in sampled.functions)


def function_name(function: FunctionSummary) -> str:
    """The name of a sampled function."""
    return visible(function.location.function or "no user code")


def _waiting(report: Report) -> list[str]:
    """What is known of a host that mostly waited, for nothing that the recording shows."""
    cpu, breakdown = report.source.cpu, report.summary.breakdown
    if cpu is None or cpu.waiting_ns is None or breakdown is None or breakdown.on_device:
        return []
    explained = sum(part.share for part in breakdown.parts if part.kind in _HOST_WAITS)
    share = cpu.waiting_ns / max(cpu.window_ns, 1) - explained
    if share < _MIN_WAITING_SHARE:
        return []
    beside = ", beside the waits listed below" if explained else ""
    waited = f"The recorded thread waited {format_share(share)} of the time{beside}"
    sentences = [f"{waited}: for I/O, a lock, a timer or another process."]
    if cpu.children_ns is not None and cpu.children_ns >= _MIN_CHILDREN_SHARE * cpu.window_ns:
        sentences.append(
            f"Its child processes used {format_ns(cpu.children_ns)} of processor time and are not "
            "recorded: use `profkit.trace` in them."
        )
    return sentences


def _unrecorded_work(report: Report, breakdown: Breakdown | None) -> str:
    """The sentence on device work that is not in the recording; empty if there is little of it."""
    parts = breakdown.parts if breakdown is not None else ()
    lost = next((part for part in parts if part.kind == "unrecorded"), None)
    if lost is None or lost.share < _MIN_UNRECORDED_SHARE:
        return ""
    time = format_ns(lost.mean_ns)
    per_step = "" if lost.per_step_ns is None else " per step"
    return (
        f"The trace is incomplete: the {device_noun(report)} worked for {time}{per_step} "
        f"({format_share(lost.share)}) on something that was not recorded."
    )


def _time_and_work(report: Report, breakdown: Breakdown | None) -> str:
    if report.source.kind == "flight-recorder":
        calls = counted(report.source.n_events, "call")
        return f"These are dumps of torch's FlightRecorder, with {calls} of collectives."
    if breakdown is None or not breakdown.total_ns:
        return "No event time could be attributed."
    busy_share = breakdown.busy_share
    if breakdown.per_step_ns is None and busy_share is not None:
        return (
            f"The recording has {_no_steps(report)}; {_devices(report)} busy "
            f"{format_share(busy_share)} of the {format_ns(breakdown.total_ns)} from first to last "
            "device work."
        )
    start = f"{breakdown_title(report)} is {step_time(report)}"
    if breakdown.per_step_ns is None:
        length = format_ns(breakdown.total_ns)
        start = f"The recording is {length} long and has {_no_steps(report)}"
    window_ns = report.summary.window_ns
    covered = breakdown.total_ns / window_ns if window_ns else 1.0
    end = "."
    if covered < _MIN_STEPS_SHARE:
        end = f"; steps are {format_share(covered)} of the recording."
    if busy_share is not None:
        return f"{start}; {_devices(report)} busy {format_share(busy_share)} of it{end}"
    work = sum(part.share for part in breakdown.parts if part.kind in _HOST_WORK)
    on_device = report.source.devices or _has_device_operators(report)
    where = "without recorded device work" if on_device else "all on the CPU"
    return f"{start}, {where}; operators take {format_share(work)} of it{end}"


def _has_device_operators(report: Report) -> bool:
    return any(DEVICE_OPERATOR.match(op.name) for op in report.summary.top_ops)


def _no_steps(report: Report) -> str:
    return "no complete step" if report.summary.n_incomplete_steps else "no steps"


def _devices(report: Report) -> str:
    several = len(report.summary.devices) > 1
    return f"at least one {device_noun(report)} is" if several else f"the {device_noun(report)} is"


def breakdown_title(report: Report) -> str:
    """The title of a breakdown: ``Step time``, in a job of which rank; else what it covers."""
    breakdown = report.summary.breakdown
    if breakdown is None or (not breakdown.on_device and breakdown.per_step_ns is None):
        return "Whole recording"
    if breakdown.per_step_ns is None:
        return f"From first to last {device_noun(report)} work"
    return f"Step time of rank {report.source.rank}" if report.ranks else "Step time"


def categories_title(report: Report) -> str:
    """The title of the table of categories: of kernels, or without devices of operators."""
    on_device = any(each.elementwise_ns is not None for each in report.summary.categories)
    return "Kernel time" if on_device else "Operator time"


def table_title(items: str, *, per_step: bool) -> str:
    """``Kernels``, or ``Kernels in total`` where no times per step are known."""
    return items if per_step else f"{items} in total"


def _highest_costs(report: Report) -> list[str]:
    """The finding with the highest cost in time, and the one in memory.

    Of memory, a note is named only where nothing else has a cost.
    """
    in_time = next((each for each in report.findings if _is_costly(report, each)), None)
    of_memory = [each for each in report.findings if each.cost.bytes]
    serious = [each for each in of_memory if each.severity != "note"]
    in_bytes = next(iter(serious or (of_memory if in_time is None else ())), None)
    sentences = []
    if in_time is not None:
        sentences.append(f"Highest cost: {_summarized(report, in_time)}.")
    if in_bytes is not None and in_bytes is not in_time:
        sentences.append(f"Highest memory cost: {_summarized(report, in_bytes)}.")
    return sentences


def _is_costly(report: Report, finding: Finding) -> bool:
    share = cost_share(report, finding)
    return bool(finding.cost.ns) and (share is None or share >= _MIN_FINDING_SHARE)


def _summarized(report: Report, finding: Finding) -> str:
    return f"{_inline(finding.title)}{at_place(finding)}, {cost_text(report, finding)}"


def at_place(finding: Finding) -> str:
    """``at train.py:12`` or ``at aten::mm``, with a leading space; empty if neither is known."""
    where = finding.locations[0] if finding.locations else Location()
    word = "in" if where.file and where.line is None else "at"
    return f" {word} {visible(where.place)}" if where.file or where.op else ""


def _inline(title: str) -> str:
    """A title within a sentence: in lower case, unless it begins with a name or an acronym."""
    text = visible(title).rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def _without_costs(report: Report) -> str:
    """The sentence in place of the highest cost, and the cause of long idle time."""
    if report.summary.breakdown is None and memory_sentences(report):
        return no_memory_findings(report)
    breakdown = report.summary.breakdown
    sentence = no_problems(report)
    if any(finding.cost.ns is not None for finding in report.findings):
        whole = "step time" if breakdown and breakdown.per_step_ns is not None else "the recording"
        sentence = f"No finding exceeds 1% of {whole}."
    elif report.findings:
        sentence = "No finding has a measured cost."
    idle = [part for part in breakdown.parts if part.kind.startswith(_IDLE)] if breakdown else []
    longest = max(idle, key=lambda part: part.ns, default=None)
    if longest is not None and longest.share >= _MIN_IDLE_SHARE:
        cause = idle_explanation(longest.kind)
        share = format_share(longest.share)
        sentence += f" The {device_noun(report)} is idle {share} of the time: {cause}."
    return sentence


def origin(report: Report) -> list[str]:
    """Devices, torch version and rank of a recording."""
    source = report.source
    parts = sorted({name for name in source.devices if name})
    if source.torch:
        parts.append(f"torch {source.torch}")
    if source.rank is not None:
        parts.append(f"rank {source.rank}{f' of {source.world_size}' if source.world_size else ''}")
    return parts


def facts(report: Report, *, everything: bool) -> list[str]:
    """Figures on devices and memory, a line each.

    Args:
        everything: Whether to include all syncs, copies, regions and single devices.
    """
    summary = report.summary
    derived = report.source.step_origin not in {None, "profiler", "entry"}
    lines = [f"steps are {visible(report.source.step_definition)}"] if derived else []
    lines += [
        _device_fact(device)
        for device in summary.devices
        if device.span_ns and (everything or len(summary.devices) > 1)
    ]
    lines += flop_facts(report, everything=everything)
    lines += memory_facts(report, everything=everything)
    lines += _sync_sites(summary, None if everything else _MAX_SYNC_SITES)
    return [*lines, *_counts(report)] if everything else lines


def flop_facts(report: Report, *, everything: bool) -> Iterator[str]:
    """FLOP utilization, or FLOPs alone and how to state a device's peak."""
    flops = report.summary.flops
    if flops is None:
        return
    known = flops.known_share
    if known is not None and known < _MIN_TOLD_SHARE and not everything:
        return
    rest = ""
    if known is not None and known < _MIN_KNOWN_SHARE:
        rest = f", at least: FLOPs are known of {format_share(known)} of the time of matmuls"
    achieved = f"{format_number(flops.tflops_per_s)} TFLOP/s"
    if flops.utilization_share is not None:
        share = format_share(flops.utilization_share)
        yield f"FLOP utilization: {share} of the {flops.precision} peak, {achieved}{rest}"
    elif flops.flops and (everything or flops.unknown_devices):
        yield f"FLOPs of matmuls: {achieved} of step time{rest}"
    if flops.model_utilization_share is not None:
        share = format_share(flops.model_utilization_share)
        yield f"model FLOP utilization (MFU): {share} of the {flops.precision} peak"
    elif flops.model_flops_per_step is not None:
        yield (
            "model FLOP utilization (MFU) is not known: it needs steps, the shapes of inputs and "
            "the device's peak"
        )
    if flops.unknown_devices:
        devices = ", ".join(map(visible, flops.unknown_devices))
        yield f"The peak of {devices} is not known: state it in `[tool.profkit.peaks]`"


def _processor_time(report: Report, *, everything: bool) -> Iterator[str]:
    """Whether the recorded thread ran, waited, or was ready to run without a core."""
    cpu = report.source.cpu
    if cpu is None or cpu.waiting_ns is None or cpu.delayed_ns is None or not cpu.window_ns:
        return
    delayed = cpu.delayed_ns / cpu.window_ns
    if everything or delayed >= _MIN_DELAYED_SHARE:
        ran, waited = (format_share(ns / cpu.window_ns) for ns in (cpu.thread_ns, cpu.waiting_ns))
        yield (
            f"The recorded thread ran {ran} of the recording, waited {waited}, and had no core for "
            f"{format_share(delayed)}, while others used the machine."
        )


def _device_fact(device: DeviceSummary) -> str:
    parts = [("compute", device.compute_ns), ("copies", device.memcpy_ns)]
    if device.communication_ns:
        parts.append(("communication", device.communication_ns))
        parts.append(("compute and communication overlapping", device.overlap_ns))
    shares = ", ".join(f"{name} {format_share(ns / device.span_ns)}" for name, ns in parts)
    busy = format_share(device.busy_ns / device.span_ns)
    span = format_ns(device.span_ns)
    return f"{device.device}: busy {busy} of the {span} from its first to its last work: {shares}"


def _sync_sites(summary: Summary, limit: int | None) -> Iterator[str]:
    """The lines with syncs that were recorded while the program ran."""
    sites = summary.sync_sites or ()
    for site in sites[:limit]:
        place = "library code" if not site.location else site.location.place
        allowed = "" if site.allowed_reason is None else f", allowed: {site.allowed_reason}"
        yield f"{place}: {counted(site.n_calls, 'sync')} in {site.operation}{allowed}"
    rest = sites[limit:] if limit is not None else ()
    if rest:
        n_calls = sum(site.n_calls for site in rest)
        yield f"{counted(len(rest), 'more line')}: {counted(n_calls, 'sync')}"


def _counts(report: Report) -> Iterator[str]:
    summary = report.summary
    for sync in summary.syncs:
        yield f"{sync.call}: {format_count(sync.n_calls)} calls, {_times(sync)}"
    for copy in summary.copies:
        size = "" if copy.bytes is None else f", {format_bytes(copy.bytes)}"
        calls = format_count(copy.n_calls)
        yield f"{copy.kind}: {calls} copies, {_times(copy)}{size}"
    for region in summary.regions:
        calls = format_count(region.n_calls)
        yield f"region {region.name}: {calls} entries, {_times(region)}"


def _times(of: CopySummary | RegionSummary | SyncSummary) -> str:
    """``1.20 ms per step, 3.61 ms in total``."""
    total = f"{format_ns(of.total_ns)} in total"
    return total if of.per_step_ns is None else f"{format_ns(of.per_step_ns)} per step, {total}"


def busiest_kernels(report: Report) -> tuple[bool, list[KernelSummary]]:
    """Kernels by their time per step, or where that is not known in total.

    Returns:
        Whether times per step are known, and the kernels.
    """
    every = report.summary.top_kernels
    per_step = any(each.per_step_ns is not None for each in every)
    return per_step, sorted(
        every, key=lambda each: (-(each.per_step_ns or 0), -each.total_ns, each.name)
    )


def busiest_ops(report: Report) -> tuple[bool, bool, list[OpSummary]]:
    """Operators by the device time that they launch themselves, else by their self time.

    These are times per step, or where none is known in total. The report has operators by total
    time, which includes the operators that they call.

    Returns:
        Whether times per step are known, whether operators are ranked by device time, and the
        operators.
    """
    every = report.summary.top_ops
    per_step = any(each.per_step_ns is not None for each in every)
    launching = [op for op in every if op.device_ns]
    if launching:
        return (
            per_step,
            True,
            sorted(
                launching, key=lambda op: (-(op.device_per_step_ns or 0), -op.device_ns, op.name)
            ),
        )
    return (
        per_step,
        False,
        sorted(every, key=lambda op: (-(op.self_per_step_ns or 0), -op.self_ns, op.name)),
    )


def unchecked_by_reason(report: Report, *, everything: bool = False) -> list[tuple[str, str]]:
    """The skipped checks by reason: the reason with its remedy, and the ids of the rules.

    Args:
        everything: Whether to list each id, instead of ranges such as ``MEM003 to MEM005``.
    """
    groups: dict[str, list[str]] = {}
    for each in report.unchecked:
        groups.setdefault(f"{each.reason} {each.remedy}", []).append(each.rule)
    joined = ", ".join if everything else _ranges
    return [(reason, joined(dict.fromkeys(rules))) for reason, rules in groups.items()]


def _ranges(rules: Iterable[str]) -> str:
    """Ids, with three or more consecutive ones as a range: ``MEM003 to MEM005, SYN001``."""
    runs: list[list[str]] = []
    for rule in rules:
        if runs and _is_next(runs[-1][-1], rule):
            runs[-1].append(rule)
        else:
            runs.append([rule])
    return ", ".join(
        f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run)  # noqa: PLR2004  (two are no range)
        for run in runs
    )


def _is_next(before: str, rule: str) -> bool:
    """Whether two ids are of one family and consecutive."""
    first, second = before[-_NUMBER_DIGITS:], rule[-_NUMBER_DIGITS:]
    if before[:-_NUMBER_DIGITS] != rule[:-_NUMBER_DIGITS] or not (first + second).isdecimal():
        return False
    return int(second) == int(first) + 1


def remarks(report: Report, *, everything: bool) -> Iterator[str]:
    """How recording affects the figures, a sentence each.

    Args:
        everything: Whether to include little overhead, work without a recorded launch, and why
            there is no table of modules.
    """
    source = report.source
    overhead = source.overhead_ratio
    if overhead is not None and (overhead >= _NOTABLE_OVERHEAD or everything):
        yield _overhead_text(overhead)
    cost = source.run_cost
    if cost is not None and (cost.share >= _NOTABLE_OVERHEAD or everything):
        yield _run_cost_text(cost, source.cpu)
    yield from _processor_time(report, everything=everything)
    if report.summary.memory is not None:
        yield from report.summary.memory.not_measured
    if source.lines_from == "other-step":
        yield "Times are from steps without stacks; source lines are from one warm-up step."
    if report.summary.n_gpu_events_without_launch and everything:
        n = format_count(report.summary.n_gpu_events_without_launch)
        yield f"{n} kernels and copies were launched before recording began."
    if report.summary.top_ops and not report.summary.modules and everything:
        without = "" if source.lines_from else ", which needs Python stacks"
        yield f"No times of modules: no call of an `nn.Module` was recorded{without}."


def _run_cost_text(cost: RunCost, cpu: CpuTime | None) -> str:
    recorded = "" if cpu is None else f"{format_ns(cpu.window_ns)} of the run were recorded. "
    return (
        f"{recorded}Recording took {format_ns(cost.recording_ns)} of processor time and the report "
        f"{format_ns(cost.report_ns)}: {format_share(cost.share)} of the run."
    )


def _overhead_text(overhead_ratio: float) -> str:
    if overhead_ratio >= 1:
        slower = f"a factor of about {1 + overhead_ratio:.1f}"
    else:
        slower = f"about {format_share(overhead_ratio)}"
    return f"Recording slowed the program down by {slower}; times include that, so go by shares."
