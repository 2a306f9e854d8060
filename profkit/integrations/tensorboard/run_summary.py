"""The main figures of a report: for the list of runs, the comparison of ranks, and scalars."""

from profkit.dataclass import dataclass
from profkit.model.device_summary import DeviceSummary
from profkit.model.memory_summary import MemorySummary, PeakMemory
from profkit.model.report import Report
from profkit.present.main_figures import main_figures


@dataclass(frozen=True)
class RunSummary:
    """The main figures of a report. Unknown figures are None or empty.

    Attributes:
        step_ns: The mean step time.
        data_wait_ns: Time in all steps that was spent waiting for the next batch.
        busy_share: As in :class:`~profkit.present.main_figures.MainFigures`.
        peaks: Peak memory by device.
        saving_ns: As in the main figures: per step, if there are steps.
    """

    rank: int | None
    step_ns: int | None
    data_wait_ns: int
    busy_share: float | None
    devices: tuple[DeviceSummary, ...]
    peaks: tuple[PeakMemory, ...]
    n_errors: int
    n_warnings: int
    n_notes: int
    saving_ns: int


def summarize_run(report: Report) -> RunSummary:
    """Return the main figures of a report."""
    summary = report.summary
    figures = main_figures(report)
    severities = [finding.severity for finding in report.findings]

    return RunSummary(
        rank=report.source.rank,
        step_ns=figures.step_ns,
        data_wait_ns=sum(step.data_wait_ns for step in summary.steps),
        busy_share=figures.busy_share,
        devices=summary.devices,
        peaks=_peaks(summary.memory),
        n_errors=severities.count("error"),
        n_warnings=severities.count("warning"),
        n_notes=severities.count("note"),
        saving_ns=figures.saving_ns,
    )


def _peaks(memory: MemorySummary | None) -> tuple[PeakMemory, ...]:
    if memory is None:
        return ()
    if memory.devices:
        return tuple(PeakMemory(device.device, device.at_peak_bytes) for device in memory.devices)
    return memory.peak
