"""The headline of a report, and the labels that every renderer shows."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, median
from typing import Final

from profkit.engine.families.sampled_texts import call_text
from profkit.engine.wording import counted
from profkit.model.finding import Cost, Finding
from profkit.model.location import Location
from profkit.model.report import (
    Breakdown,
    FunctionSummary,
    Report,
    SampledSummary,
    TimePart,
)
from profkit.model.torch_names import DEVICE_OPERATOR
from profkit.names import middle_cut, visible
from profkit.present.critical_path import main_name, main_share, main_word, path_label
from profkit.present.memory_text import (
    NO_EXPLANATION,
    NO_PROBLEMS,
    has_oom,
    memory_sentences,
    no_explanation,
    no_memory_findings,
    no_problems,
)
from profkit.present.ranks import describe_job
from profkit.units import format_bytes, format_ns, format_share

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
    "copy": "copies and fills",
    "unrecorded": "unrecorded GPU work",
    **{kind: f"GPU idle: {cause}" for kind, cause in _IDLE_CAUSES.items()},
    "operators": "operators",
    "backward": "backward",
    "optimizer": "optimizer",
    "data": "waiting for data",
    "python": "outside operators",
}
_HOST_WORK: Final = ("operators", "backward", "optimizer")
_MIN_FINDING_SHARE: Final = 0.01
"""A smaller cost is not in the headline, even if it is the highest."""
_MIN_UNRECORDED_SHARE: Final = 0.05
"""Less unrecorded work of a device is not in the headline."""
_MAX_NAME: Final = 40
_MIN_PART_SHARE: Final = 0.1
"""A smaller part of the critical path is not in the headline."""
MIN_SAMPLES: Final = 20
"""Fewer samples of running threads name no function in the headline, nor on a screen of text."""
_MAJORITY: Final = 0.5
"""Where no check explains at least as much, a report says so, and not that all is well."""
_MIN_IDLE_SHARE: Final = 0.1
"""Less idle time is not explained in the headline."""
_MIN_SKEW: Final = 1.5
"""The ratio of mean to median step time above which the mean describes no step."""
_NOTHING_RECORDED: Final = "nothing-recorded"
_UNKNOWN_EVENTS: Final = "unknown-events"
_MIN_STEPS_SHARE: Final = 0.5
"""If steps cover less of the recording, the headline says so."""
_BASIS: Final = {"measured": "", "replay": "", "upper-bound": "up to ", "estimate": "about "}
_HOST_WAITS: Final = ("data", "communication")
_MIN_WAITING_SHARE: Final = 0.5
"""A host that waits less is not in the headline."""
_MIN_CHILDREN_SHARE: Final = 0.1
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
    return " ".join(headline_sentences(report))


def headline_sentences(report: Report) -> list[str]:
    """The sentences of :func:`headline`, at least one."""
    nothing = next((each for each in report.health if each.name == _NOTHING_RECORDED), None)
    if nothing is not None:
        return [visible(nothing.message), visible(nothing.fix)]
    breakdown = report.summary.breakdown
    on_memory = [] if breakdown is not None else memory_sentences(report)
    sentences = [*describe_job(report), *(on_memory or [_time_and_work(report, breakdown)])]
    incomplete = _unrecorded_work(report, breakdown)
    sentences += [incomplete] if incomplete else []
    function = main_function(report)
    if function is None:
        sentences += _waiting(report)
    if not (on_memory and has_oom(report)):
        sentences += _largest_part(report) if function is None else [_takes(report, function)]
        costs = _highest_costs(report, function)
        is_explained = function is not None and not costs
        sentences += costs or ([] if is_explained else [_without_costs(report)])
    faults = [each for each in report.health if each.severity != "note"]
    if faults and not incomplete:
        sentences.append(f"Figures are less reliable: {_inline(faults[0].title)}.")
    return sentences


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
    word = {"mostly": "mostly ", "longest": "the longest "}.get(main_word(line), "")
    named = f", {word}{main}{f' ({share})' if share else ''}" if main else ""
    place = f" at {visible(line.location.place)}" if line.location.file else ""
    if line.kind == "python" and not place and (function := _sampled_function(report)):
        named = f", sampled most in {function}"
    time = format_ns(line.mean_ns)
    what = f"{path_label(line.kind)}{place}{named}"
    of_path = f"{time}{per_step} ({format_share(line.share)})"
    return [f"Largest part of the critical path: {what}, {of_path}."]


def main_function(report: Report) -> FunctionSummary | None:
    """Return the sampled function that the critical path of the steps spends most time in.

    None where something else takes longer, or no samples tell.
    """
    sampled, path = report.summary.sampled, report.summary.critical_path
    if sampled is None or not sampled.n_steps or path is None or report.ranks:
        return None
    line = next(iter(path.lines), None)
    if line is None or line.kind != "python" or line.share < _MIN_PART_SHARE:
        return None
    return next((each for each in sampled.functions if each.location == line.location), None)


def _takes(report: Report, function: FunctionSummary) -> str:
    """Return ``gc.collect(), called at train.py:18 in main, takes 612 ms per step (87%).``."""
    path = report.summary.critical_path
    lines = () if path is None else path.lines
    line = next(line for line in lines if line.location == function.location)
    call = visible(call_text(function.callee, function.location))
    what = f"{call}, takes" if function.callee else f"{call} takes"
    waits = ", in which it waits" if function.waiting_share >= _MIN_WAITING_SHARE else ""
    return f"{what} {format_ns(line.mean_ns)} per step ({format_share(line.share)}){waits}."


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


def sampled_title(sampled: SampledSummary) -> str:
    """Return the title of the table of sampled functions."""
    return "Python outside operators" if sampled.n_steps else "Functions of the whole run"


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
    # Events of unknown kinds may be work of a device.
    unknown = any(each.name == _UNKNOWN_EVENTS for each in report.health)
    on_device = report.source.devices or unknown or _has_device_operators(report)
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


def ranking(findings: Sequence[Finding]) -> str:
    """How findings are ordered: by cost, but notes last even where one costs more."""
    others = [each for each in findings if each.severity != "note"]
    notes = findings[len(others) :]
    are_last = others and notes and _ns_and_bytes(notes[0]) > _ns_and_bytes(others[-1])
    return f"highest cost first{', notes last' if are_last else ''}"


def _ns_and_bytes(finding: Finding) -> tuple[int, int]:
    return finding.cost.ns or 0, finding.cost.bytes or 0


def _highest_costs(report: Report, function: FunctionSummary | None = None) -> list[str]:
    """The finding with the highest cost in time, and the one in memory.

    A note is named only where nothing else has a cost; where one costs more, the sentence says that
    notes are left out.

    Args:
        function: A function that was named already: a finding on it is left out.
    """
    costly = (each for each in report.findings if _is_costly(report, each))
    in_time = next(costly, None)
    if in_time is not None and function is not None and function.location in in_time.locations:
        in_time = next(costly, None)
    of_memory = sorted(report.findings, key=lambda each: -(each.cost.bytes or 0))
    of_memory = [each for each in of_memory if each.cost.bytes]
    serious = [each for each in of_memory if each.severity != "note"]
    in_bytes = next(iter(serious or (of_memory if in_time is None else ())), None)
    sentences = []
    if in_time is not None:
        longest_ns = max(each.cost.ns or 0 for each in report.findings)
        aside = ", notes aside" if (in_time.cost.ns or 0) < longest_ns else ""
        sentences.append(f"Highest cost{aside}: {_summarized(report, in_time)}.")
    if in_bytes is not None and in_bytes is not in_time:
        aside = ", notes aside" if in_bytes is not of_memory[0] else ""
        sentences.append(f"Highest memory cost{aside}: {_summarized(report, in_bytes)}.")
    return sentences


def is_majority_unexplained(report: Report) -> bool:
    """Whether most of the time is in nothing that a rule checks.

    It is Python without a known function, a wait of the host, or idle time of the device.
    """
    path, idle = report.summary.critical_path, _longest_idle(report.summary.breakdown)
    python = [part for part in path.parts if part.kind == "python"] if path is not None else []
    shares = [part.share for part in python] + [idle.share if idle is not None else 0.0]
    return max(shares) >= _MAJORITY or bool(_waiting(report))


def no_findings(report: Report) -> str:
    """Return the sentence in place of a list of findings that is empty."""
    return NO_EXPLANATION if is_majority_unexplained(report) else NO_PROBLEMS


def _longest_idle(breakdown: Breakdown | None) -> TimePart | None:
    idle = [part for part in breakdown.parts if part.kind.startswith(_IDLE)] if breakdown else []
    return max(idle, key=lambda part: part.ns, default=None)


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
        main = next((each for each in report.findings if each.severity != "note"), None)
        if main is not None:
            return f"Main finding: {_inline(main.title)}{at_place(main)}."
        return no_memory_findings(report)
    breakdown = report.summary.breakdown
    sentence = no_problems(report)
    if is_majority_unexplained(report):
        sentence = no_explanation(report)
    if any(finding.cost.ns is not None for finding in report.findings):
        whole = "step time" if breakdown and breakdown.per_step_ns is not None else "the recording"
        sentence = f"No finding exceeds 1% of {whole}."
    elif report.findings:
        sentence = "No finding has a measured cost."
    longest = _longest_idle(breakdown)
    if longest is not None and longest.share >= _MIN_IDLE_SHARE:
        cause = idle_explanation(longest.kind)
        share = format_share(longest.share)
        sentence += f" The {device_noun(report)} is idle {share} of the time: {cause}."
    return sentence
