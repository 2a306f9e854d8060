"""The main figures of a recording, the same on every surface.

All are per step, as means over all steps; without steps they are of the whole recording.
"""

from typing import Final

from profkit.dataclass import dataclass
from profkit.model.report import Report
from profkit.units import format_ns, format_share

BUSY_ABOUT: Final = (
    "share of the step time, or without steps of the time from first to last device work, in which "
    "any device ran recorded work"
)
SAVING_TITLE: Final = "Could save up to"


@dataclass(frozen=True)
class MainFigures:
    """The main figures; None where they are not known.

    Attributes:
        step_ns: Mean step time in nanoseconds; None without steps.
        busy_share: :data:`BUSY_ABOUT`, from 0 to 1.
        saving_ns: Nanoseconds that the fixes of all findings save together, by one replay: per
            step, or without steps in the whole recording.
        saving_share: ``saving_ns`` as a share of the step time, or of the whole recording.
    """

    step_ns: int | None
    busy_share: float | None
    saving_ns: int
    saving_share: float | None

    @property
    def saving(self) -> tuple[str, str]:
        """``69.3 ms`` and ``per step (40%)``, after :data:`SAVING_TITLE`."""
        share = "" if self.saving_share is None else f"({format_share(self.saving_share)})"
        per_step = "" if self.step_ns is None else "per step"
        return format_ns(self.saving_ns), " ".join(filter(None, (per_step, share)))


def main_figures(report: Report) -> MainFigures:
    """Return the main figures of a report."""
    breakdown, saving_ns = report.summary.breakdown, report.summary.recoverable_ns
    if breakdown is None or not breakdown.total_ns:
        return MainFigures(None, None, saving_ns, None)
    return MainFigures(
        step_ns=breakdown.per_step_ns,
        busy_share=breakdown.busy_share,
        saving_ns=round(saving_ns / max(breakdown.n_steps, 1)),
        saving_share=saving_ns / breakdown.total_ns,
    )
