"""A report in a few figures: for the list of runs, for ranks side by side, for scalars."""

from dataclasses import dataclass
from statistics import median_low

from profkit.model.device_summary import DeviceSummary
from profkit.model.memory_summary import MemorySummary, PeakMemory
from profkit.model.report import Report, SourceKind
from profkit.present.headline import headline


@dataclass(frozen=True)
class RunSummary:
    """A report in a few figures. What is not known is None or empty.

    Attributes:
        kind: What was analyzed.
        verdict: The report in a sentence or two.
        torch: PyTorch's version.
        device_names: Names of the devices.
        rank: Rank in a distributed job.
        world_size: Ranks in that job.
        n_steps: Steps.
        step_ns: The median step.
        data_wait_ns: Time in all steps that was spent waiting for the next batch.
        sync_ns: Time in all steps in which the host waited in a synchronizing call.
        device_busy_share: Time in which the devices worked as a share of their spans, from the
            first work of each to its last.
        devices: The devices that worked.
        peaks: The highest use of memory by device.
        n_errors: Findings of that severity.
        n_warnings: Likewise.
        n_notes: Likewise.
        recoverable_ns: Time that findings say can be given back, as in the report.
    """

    kind: SourceKind
    headline: str
    torch: str | None
    device_names: tuple[str, ...]
    rank: int | None
    world_size: int | None
    n_steps: int
    step_ns: int | None
    data_wait_ns: int
    sync_ns: int
    device_busy_share: float | None
    devices: tuple[DeviceSummary, ...]
    peaks: tuple[PeakMemory, ...]
    n_errors: int
    n_warnings: int
    n_notes: int
    recoverable_ns: int


def run_summary(report: Report) -> RunSummary:
    """The few figures of a report."""
    source, summary = report.source, report.summary
    lengths = [step.dur_ns for step in summary.steps]
    span_ns = sum(device.span_ns for device in summary.devices)
    busy_ns = sum(device.busy_ns for device in summary.devices)
    severities = [finding.severity for finding in report.findings]
    return RunSummary(
        kind=source.kind,
        headline=headline(report),
        torch=source.torch,
        device_names=tuple(sorted(set(filter(None, source.devices)))),
        rank=source.rank,
        world_size=source.world_size,
        n_steps=len(lengths),
        # The first step is often longer than the rest; the median does not mind.
        step_ns=median_low(lengths) if lengths else None,
        data_wait_ns=sum(step.data_wait_ns for step in summary.steps),
        sync_ns=sum(step.sync_ns for step in summary.steps),
        device_busy_share=busy_ns / span_ns if span_ns else None,
        devices=summary.devices,
        peaks=_peaks(summary.memory),
        n_errors=severities.count("error"),
        n_warnings=severities.count("warning"),
        n_notes=severities.count("note"),
        recoverable_ns=summary.recoverable_ns,
    )


def _peaks(memory: MemorySummary | None) -> tuple[PeakMemory, ...]:
    """The peaks of a snapshot's devices, else of a trace."""
    if memory is None:
        return ()
    if memory.devices:
        return tuple(PeakMemory(each.device, each.at_peak_bytes) for each in memory.devices)
    return memory.peak
