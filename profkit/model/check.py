"""The result of ``profkit check``: each budget's figure, limit and outcome.

Times are integer nanoseconds, sizes integer bytes.
"""

from typing import Final, Literal

from profkit.dataclass import dataclass
from profkit.model.finding import Finding
from profkit.model.location import Location
from profkit.model.memory_summary import PeakSite
from profkit.model.renderable import Renderable
from profkit.model.sync_summary import SyncLine

SCHEMA: Final = "profkit.check/1"

Outcome = Literal["ok", "over", "noisy", "other-device", "unknown"]
BudgetUnit = Literal["ns", "bytes", "count"]


@dataclass(frozen=True)
class BudgetResult:
    """The result of one budget.

    Attributes:
        name: The budget's name, such as ``step_ms`` or ``findings.warning``.
        title: The figure that it limits, such as ``step time``.
        unit: Unit of the figures.
        value: For times the median over the steps, for counts and sizes the maximum of any step;
            None where it is not known.
        error: Three standard errors of a time's median, from its median absolute deviation; None
            for other figures, and with fewer than three measurements.
        n: Number of measurements: steps, or with three or more recordings recordings.
        limit: The maximum of the figure, or None where it is not known.
        baseline: The same figure of the baseline, for limits that are relative to it.
        outcome: ``ok``: within the limit. ``over``: beyond it. ``noisy``: beyond it by less than
            the error of the two figures, or than other programs have delayed the steps.
            ``other-device``: a time that was recorded on another device than the baseline's.
            ``unknown``: the figure or its baseline is missing.
        reason: Why the outcome is neither ``ok`` nor ``over``; else empty.
        causes: Findings that explain a figure beyond its limit, highest cost first.
        sites: The lines with most of the peak memory, if that is beyond its limit.
        sync_lines: The lines with most syncs, if these are beyond their limit, without those of
            findings.
    """

    name: str
    title: str
    unit: BudgetUnit
    value: int | None
    error: int | None
    n: int
    limit: int | None
    baseline: int | None
    outcome: Outcome
    reason: str = ""
    causes: tuple[Finding, ...] = ()
    sites: tuple[PeakSite, ...] = ()
    sync_lines: tuple[SyncLine, ...] = ()

    @property
    def has_failed(self) -> bool:
        """Return whether the figure is beyond its limit, or not known."""
        return self.outcome in {"over", "unknown"}

    @property
    def locations(self) -> tuple[Location, ...]:
        """Return the source lines that explain a figure beyond its limit, most important first."""
        places = [site.location for site in self.sites]
        places += [line.location for line in self.sync_lines]
        places += [where for cause in self.causes for where in cause.locations]
        return tuple(place for place in places if place.file)


@dataclass(frozen=True)
class Check(Renderable):
    """The budgets of a program, compared with some recordings of it.

    Attributes:
        profkit: profkit's version.
        paths: The recordings.
        devices: The devices on which they were recorded: GPUs, or else the processor.
        torch: PyTorch's version, or None where it was not recorded.
        revision: The program's git commit, or None where it was not recorded.
        results: The budgets, in the order of the configuration.
        schema: Name and version of this schema.
    """

    profkit: str
    paths: tuple[str, ...]
    devices: tuple[str, ...]
    torch: str | None
    revision: str | None
    results: tuple[BudgetResult, ...]
    schema: str = SCHEMA

    @property
    def failed(self) -> tuple[BudgetResult, ...]:
        """Return the budgets that fail the check."""
        return tuple(result for result in self.results if result.has_failed)

    @property
    def is_ok(self) -> bool:
        """Return whether no budget fails."""
        return not self.failed
