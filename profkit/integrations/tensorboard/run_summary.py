"""The main figures of a report: for the list of runs, the comparison of ranks, and scalars."""

from statistics import median_low

from profkit.dataclass import dataclass
from profkit.model.device_summary import DeviceSummary
from profkit.model.memory_summary import MemorySummary, PeakMemory
from profkit.model.report import Report


@dataclass(frozen=True)
class RunSummary:
    """The main figures of a report. Unknown figures are None or empty.

    Attributes:
        step_ns: The median step time.
        mean_step_ns: The mean step time.
        data_wait_ns: Time in all steps that was spent waiting for the next batch.
        device_busy_share: Busy time of the devices as a share of their spans, each from the
            device's first work to its last.
        peaks: Peak memory by device.
        recoverable_ns: Time that the findings' fixes can save, as in the report.
    """

    rank: int | None
    step_ns: int | None
    mean_step_ns: int | None
    data_wait_ns: int
    device_busy_share: float | None
    devices: tuple[DeviceSummary, ...]
    peaks: tuple[PeakMemory, ...]
    n_errors: int
    n_warnings: int
    n_notes: int
    recoverable_ns: int


def run_summary(report: Report) -> RunSummary:
    """The main figures of a report."""
    summary = report.summary
    lengths = [step.time_ns for step in summary.steps]
    span_ns = sum(device.span_ns for device in summary.devices)
    busy_ns = sum(device.busy_ns for device in summary.devices)
    severities = [finding.severity for finding in report.findings]
    return RunSummary(
        rank=report.source.rank,
        # The first step is often slower than the others; the median is not affected.
        step_ns=median_low(lengths) if lengths else None,
        mean_step_ns=summary.breakdown.per_step_ns if summary.breakdown else None,
        data_wait_ns=sum(step.data_wait_ns for step in summary.steps),
        device_busy_share=busy_ns / span_ns if span_ns else None,
        devices=summary.devices,
        peaks=_peaks(summary.memory),
        n_errors=severities.count("error"),
        n_warnings=severities.count("warning"),
        n_notes=severities.count("note"),
        recoverable_ns=summary.recoverable_ns,
    )


def _peaks(memory: MemorySummary | None) -> tuple[PeakMemory, ...]:
    if memory is None:
        return ()
    if memory.devices:
        return tuple(PeakMemory(each.device, each.at_peak_bytes) for each in memory.devices)
    return memory.peak
