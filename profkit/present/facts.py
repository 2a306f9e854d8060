"""Facts that every renderer shows with the findings: devices, counts, skipped checks, remarks."""

from collections.abc import Iterable, Iterator
from typing import Final

from profkit.engine.wording import counted
from profkit.model.capture_info import CpuTime
from profkit.model.device_summary import DeviceSummary
from profkit.model.report import Report, RunCost, Source, Summary
from profkit.model.sync_summary import CopySummary, SyncSummary
from profkit.model.torch_names import STEP
from profkit.model.work_summary import KernelSummary, OpSummary, RegionSummary
from profkit.names import visible
from profkit.present.memory_text import memory_facts
from profkit.units import format_bytes, format_count, format_ns, format_number, format_share

_NOTABLE_OVERHEAD: Final = 0.05
_MIN_TOLD_SHARE: Final = 0.5
"""With FLOPs of a smaller share of the time of matmuls, their sum says little."""
_MIN_KNOWN_SHARE: Final = 0.99
_MAX_SYNC_SITES: Final = 5
"""Lines with syncs that are listed without ``--verbose``."""
_NUMBER_DIGITS: Final = 3


def origin(report: Report) -> list[str]:
    """Return the devices, torch version and rank of a recording."""
    source = report.source
    parts = sorted({name for name in source.devices if name})
    if source.torch:
        parts.append(f"torch {source.torch}")
    if source.rank is not None:
        parts.append(f"rank {rank_label(source)}")
    return parts


def rank_label(source: Source) -> str:
    """``3 of 8``, or the rank alone where the size of its job is not known."""
    return f"{source.rank} of {source.world_size}" if source.world_size else str(source.rank)


def facts(report: Report, *, everything: bool) -> list[str]:
    """List figures on devices and memory, a line each.

    Args:
        everything: Whether to include all syncs, copies, regions and single devices.
    """
    summary = report.summary
    derived = report.source.step_origin not in {None, "profiler", "entry"}
    lines = [f"steps are {visible(report.source.step_definition)}"] if derived else []
    # The breakdown has the figures of a single device.
    lines += [
        _device_fact(device)
        for device in summary.devices
        if device.span_ns and (everything or len(summary.devices) > 1)
    ]

    lines += _describe_flops(report, everything=everything)
    lines += memory_facts(report, everything=everything)
    lines += _list_sync_sites(summary, None if everything else _MAX_SYNC_SITES)
    return [*lines, *_counts(report)] if everything else lines


def _describe_flops(report: Report, *, everything: bool) -> Iterator[str]:
    """Yield the FLOP utilization, or FLOPs alone and how to state a device's peak."""
    flops = report.summary.flops
    if flops is None:
        return
    share_known = flops.known_share
    if share_known is not None and share_known < _MIN_TOLD_SHARE and not everything:
        return

    # FLOPs of some matmuls alone are a lower bound.
    bound = ""
    if share_known is not None and share_known < _MIN_KNOWN_SHARE:
        bound = f", at least: FLOPs are known of {format_share(share_known)} of the time of matmuls"
    achieved = f"{format_number(flops.tflops_per_s)} TFLOP/s"
    if flops.utilization_share is not None:
        share = format_share(flops.utilization_share)
        yield f"FLOP utilization: {share} of the {flops.precision} peak, {achieved}{bound}"
    elif flops.flops and (everything or flops.unknown_devices):
        yield f"FLOPs of matmuls: {achieved} of step time{bound}"

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


def _describe_processor_time(report: Report) -> Iterator[str]:
    """Say whether the recorded thread ran, waited, or was ready to run without a core."""
    cpu = report.source.cpu
    if cpu is None or cpu.waiting_ns is None or cpu.delayed_ns is None or not cpu.window_ns:
        return
    ran, waited = (format_share(ns / cpu.window_ns) for ns in (cpu.thread_ns, cpu.waiting_ns))
    yield (
        f"The recorded thread ran {ran} of the recording, waited {waited}, and had no core for "
        f"{format_share(cpu.delayed_share)}."
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


def _list_sync_sites(summary: Summary, limit: int | None) -> Iterator[str]:
    """Yield the lines with syncs that were recorded while the program ran."""
    sites = summary.sync_sites or ()
    for site in sites[:limit]:
        place = "library code" if not site.location else site.location.place
        allowed = "" if site.allowed_reason is None else f", allowed: {site.allowed_reason}"
        yield f"{place}: {counted(site.n_calls, 'sync')} in {site.operation}{allowed}"

    hidden = sites[limit:] if limit is not None else ()
    if hidden:
        n_calls = sum(site.n_calls for site in hidden)
        yield f"{counted(len(hidden), 'more line')}: {counted(n_calls, 'sync')}"


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
    """Sort kernels by their time per step, or by their total time without steps.

    Returns:
        Whether times per step are known, and the kernels.
    """
    kernels = report.summary.top_kernels
    per_step = any(kernel.per_step_ns is not None for kernel in kernels)
    return per_step, sorted(
        kernels, key=lambda kernel: (-(kernel.per_step_ns or 0), -kernel.total_ns, kernel.name)
    )


def busiest_ops(report: Report) -> tuple[bool, bool, list[OpSummary]]:
    """Sort operators by the device time that they launch themselves, else by their self time.

    These are times per step, or total times without steps. The report has operators by total time,
    which includes the operators that they call.

    Returns:
        Whether times per step are known, whether operators are ranked by device time, and the
        operators.
    """
    # Some producers write marks of steps as operators.
    ops = [op for op in report.summary.top_ops if not STEP.match(op.name)]
    per_step = any(op.per_step_ns is not None for op in ops)

    launching = [op for op in ops if op.device_ns]
    if launching:
        launching.sort(key=lambda op: (-(op.device_per_step_ns or 0), -op.device_ns, op.name))
        return per_step, True, launching
    by_self_time = sorted(ops, key=lambda op: (-(op.self_per_step_ns or 0), -op.self_ns, op.name))
    return per_step, False, by_self_time


def unchecked_by_reason(report: Report, *, everything: bool = False) -> list[tuple[str, str]]:
    """Group skipped checks by reason: the reason with its remedy, and the ids of the rules.

    Args:
        everything: Whether to list each id, instead of ranges such as ``MEM003 to MEM005``.
    """
    groups: dict[str, list[str]] = {}
    for check in report.unchecked:
        groups.setdefault(f"{check.reason} {check.remedy}", []).append(check.rule)
    joined = ", ".join if everything else id_ranges
    return [(reason, joined(dict.fromkeys(rules))) for reason, rules in groups.items()]


def id_ranges(rules: Iterable[str]) -> str:
    """Join ids, with three or more consecutive ones as a range: ``MEM003 to MEM005, SYN001``."""
    runs: list[list[str]] = []
    for rule in rules:
        if runs and _is_next(runs[-1][-1], rule):
            runs[-1].append(rule)
        else:
            runs.append([rule])
    return ", ".join(
        f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(run)  # noqa: PLR2004  (two ids stay separate)
        for run in runs
    )


def _is_next(before: str, rule: str) -> bool:
    """Tell whether two ids are of one family and consecutive."""
    first, second = before[-_NUMBER_DIGITS:], rule[-_NUMBER_DIGITS:]
    if before[:-_NUMBER_DIGITS] != rule[:-_NUMBER_DIGITS] or not (first + second).isdecimal():
        return False
    return int(second) == int(first) + 1


def describe_recording(report: Report, *, everything: bool) -> Iterator[str]:
    """Yield how recording affects the figures, a sentence each.

    Args:
        everything: Whether to include little overhead, the processor time, work without a recorded
            launch, and why there is no table of modules.
    """
    source = report.source
    overhead = source.overhead_ratio
    if overhead is not None and (overhead >= _NOTABLE_OVERHEAD or everything):
        yield _overhead_text(overhead)
    cost = source.run_cost
    if cost is not None and (cost.share >= _NOTABLE_OVERHEAD or everything):
        yield _run_cost_text(cost, source.cpu)

    if everything:
        yield from _describe_processor_time(report)
    if report.summary.memory is not None:
        yield from report.summary.memory.not_measured

    if source.lines_from == "other-step":
        yield "Times are from steps without stacks; source lines are from another step."
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
