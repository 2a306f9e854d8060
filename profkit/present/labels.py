"""Labels, step times and costs, as every renderer shows them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from statistics import mean, median
from typing import Final

from profkit.model.finding import Cost, Finding
from profkit.model.location import Location, numbered_line
from profkit.model.report import Report
from profkit.model.torch_names import DEVICE_OPERATOR
from profkit.model.work_summary import FunctionSummary, SampledSummary
from profkit.names import short_path, visible
from profkit.present.idle_causes import idle_text
from profkit.units import format_bytes, format_count, format_ns, format_share

_LABELS: Final = {
    "compute": "compute",
    "communication": "exposed communication",
    "copy": "copies and fills",
    "unrecorded": "unrecorded GPU work",
    "operators": "operators",
    "backward": "backward",
    "optimizer": "optimizer",
    "data": "waiting for data",
    "python": "outside operators",
}
_UNKNOWN_EVENTS: Final = "unknown_events"
"""Evidence of odd-trace."""
MIN_SAMPLES: Final = 10
"""Fewer samples of running threads name no function in the headline, nor on a screen of text."""
MIN_SKEW: Final = 1.5
"""The ratio of mean to median step time above which the mean describes no step."""
_BASIS: Final = {"measured": "", "replay": "", "upper-bound": "up to ", "estimate": "about "}
_NO_TIME: Final = "no time: other work takes as long"
_NO_TIME_HERE: Final = "no time in this recording"


def part_label(kind: str) -> str:
    """Return the label of a part of the step time, by its kind as in ``TimePart``."""
    idle = idle_text(kind)
    return (
        f"GPU idle: {visible(idle.label)}" if idle is not None else _LABELS.get(kind, visible(kind))
    )


def device_noun(report: Report) -> str:
    """``GPU``, or ``device`` for other accelerators."""
    kinds = {device.device.partition(":")[0] for device in report.summary.devices}
    return "GPU" if kinds and kinds <= {"cuda", "hip", "xpu", "mps"} else "device"


def is_on_cpu(report: Report) -> bool:
    """Return whether all work is known to be on the CPU, and not only all recorded work."""
    # Events of unknown kinds may be work of a device.
    has_unknown = any(_UNKNOWN_EVENTS in fault.evidence for fault in report.health)
    has_operators = any(DEVICE_OPERATOR.match(op.name) for op in report.summary.top_ops)
    breakdown, memory = report.summary.breakdown, report.summary.memory
    has_work = breakdown is not None and breakdown.on_device
    has_memory = memory is not None and bool(memory.devices)
    return not (report.source.devices or has_work or has_memory or has_unknown or has_operators)


def step_time(report: Report) -> str:
    """Return the mean step time and its range, ``174 ms (160 ms to 200 ms)``; empty without steps.

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


def excluded_steps(report: Report) -> str:
    """``1 incomplete and 2 disturbed steps excluded``; empty if figures leave out no step."""
    summary = report.summary
    kinds = {"incomplete": summary.n_incomplete_steps, "disturbed": summary.n_disturbed_steps}
    numbers = [f"{format_count(n)} {kind}" for kind, n in kinds.items() if n]
    noun = "step" if sum(kinds.values()) == 1 else "steps"
    return f"{' and '.join(numbers)} {noun} excluded" if numbers else ""


def step_range(report: Report) -> str:
    """Return the shortest and longest step, ``160 ms to 200 ms``; empty if both read the same.

    With the median where a few long steps dominate the mean: ``median 152 ms, 146 ms to 4.49 s``.
    """
    lengths = [step.time_ns for step in report.summary.steps] or [0]
    low, high = format_ns(min(lengths)), format_ns(max(lengths))
    if low == high:
        return ""
    middle = median(lengths)
    about = f"median {format_ns(middle)}, " if mean(lengths) > MIN_SKEW * middle else ""
    return f"{about}{low} to {high}"


def cost_share(report: Report, finding: Finding) -> float | None:
    """Return a finding's time as a share of the step time, or of the recording without steps.

    In the report on a job, it is a share of the job's step time.

    Returns:
        None if either is unknown, or the time is of steps that were not recorded.
    """
    if finding.cost.ns is None:
        return None
    slowdown = report.collectives.slowdown if report.collectives is not None else None
    if slowdown is not None and slowdown.n_steps and finding.cost.per_step_ns is not None:
        return finding.cost.per_step_ns / slowdown.recorded_ns
    breakdown = report.summary.breakdown
    if finding.cost.per_step_ns is not None and breakdown and breakdown.per_step_ns:
        return finding.cost.per_step_ns / breakdown.per_step_ns
    total_ns = breakdown.total_ns if breakdown else report.summary.window_ns
    return finding.cost.ns / total_ns if total_ns else None


def cost_text(report: Report, finding: Finding) -> str:
    """Return a cost, ``up to 65.1 ms per step (37%), 1.50 MiB per step``; empty if unknown.

    Where a fix saves nothing, it says so: in a replay the steps may wait for other work meanwhile.
    """
    cost = finding.cost
    if cost.ns == 0 and cost.high_ns is not None:
        return _most_text(report, finding, cost.high_ns) if cost.high_ns else _NO_TIME
    if is_free(finding):
        return _NO_TIME_HERE

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


def is_free(finding: Finding) -> bool:
    """Tell whether a finding costs nothing where it was recorded, but may elsewhere."""
    cost = finding.cost
    return cost.ns == 0 and cost.high_ns is None and not cost.bytes


def _most_text(report: Report, finding: Finding, high_ns: int) -> str:
    """Return the upper end of a cost whose lower end is 0."""
    n_steps = max(1, len(report.summary.steps))
    most = replace(finding.cost, ns=high_ns, low_ns=None, high_ns=None, basis="upper-bound")
    if most.per_step_ns is not None:
        most = replace(most, per_step_ns=round(high_ns / n_steps))
    return cost_text(report, replace(finding, cost=most))


def _time_range(cost: Cost, ns: int) -> str:
    """Return a time, up to the one with hidden latencies if that differs as it is written.

    Args:
        ns: The cost, in the whole window or per step.
    """
    low = format_ns(ns)
    high = format_ns(round(ns * cost.high_ns / cost.ns)) if cost.high_ns and cost.ns else low
    if high == low or cost.basis == "upper-bound":
        return high
    number, _, unit = low.partition(" ")
    return f"{number if unit == high.partition(' ')[2] else low} to {high}"


def sampled_title(sampled: SampledSummary) -> str:
    """Return the title of the table of sampled functions."""
    return "Python outside operators" if sampled.n_steps else "Functions of the whole run"


def n_running(sampled: SampledSummary) -> int:
    """Return the number of samples of running threads."""
    return sum(function.n_samples for function in sampled.functions)


def function_name(function: FunctionSummary) -> str:
    """Return the name of a sampled function."""
    return visible(function.location.function or "no user code")


def breakdown_title(report: Report) -> str:
    """Return the title of a breakdown: ``Step time``, in a job with its rank; else its part."""
    breakdown = report.summary.breakdown
    if breakdown is None or (not breakdown.on_device and breakdown.per_step_ns is None):
        return "Whole recording"
    if breakdown.per_step_ns is None:
        return f"From first to last {device_noun(report)} work"
    return f"Step time of rank {report.source.rank}" if report.ranks else "Step time"


def categories_title(report: Report) -> str:
    """Return the title of the table of categories: of kernels, or without devices of operators."""
    categories = report.summary.categories
    on_device = any(category.elementwise_ns is not None for category in categories)
    return "Kernel time" if on_device else "Operator time"


def table_title(items: str, *, per_step: bool) -> str:
    """``Kernels``, or ``Kernels in total`` where no times per step are known."""
    return items if per_step else f"{items} in total"


def ranking(findings: Sequence[Finding]) -> str:
    """Say how findings are ordered: by cost, but errors first and notes last at any cost."""
    others = [finding for finding in findings if finding.severity != "note"]
    errors = [*takewhile(lambda finding: finding.severity == "error", others)]
    warnings, notes = others[len(errors) :], findings[len(others) :]

    order = "highest cost first"
    if errors and warnings and warnings[0].cost.ns_and_bytes > errors[-1].cost.ns_and_bytes:
        order = "errors first, then the highest cost"
    if others and notes and notes[0].cost.ns_and_bytes > others[-1].cost.ns_and_bytes:
        order += ", notes last"
    return order


def source_line(file: str, line: int | None, base: str) -> str:
    """Return ``src/train.py:12``, relative to the folder ``base`` if the file is inside."""
    return numbered_line(short_path(file, base), line)


def at_place(finding: Finding) -> str:
    """``at train.py:12`` or ``at aten::mm``, with a leading space; empty if neither is known."""
    where = finding.locations[0] if finding.locations else Location()
    is_function = where.line is None or where.precision == "function"
    word = "in" if where.file and is_function else "at"
    return f" {word} {visible(where.place)}" if where.file or where.op else ""


def inline_title(title: str) -> str:
    """Return a title in a sentence: in lower case, unless it begins with a name or an acronym."""
    text = visible(title).rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text
