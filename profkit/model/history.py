"""Figures and findings of a program over its commits.

Times are integer nanoseconds, sizes integer bytes. Figures that were not recorded are missing.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Final

from profkit.dataclass import dataclass
from profkit.model.check import BudgetUnit
from profkit.model.finding import Severity
from profkit.model.location import Location
from profkit.model.renderable import Renderable

SCHEMA: Final = "profkit.history/1"


@dataclass(frozen=True)
class HistoryFigure:
    """A figure at one commit.

    Attributes:
        value: Of times the median over the steps or, with three or more recordings, over the
            recordings; of counts and sizes the most.
        error: Three standard errors of a time's median; None for other figures, and with fewer than
            three measurements.
    """

    value: int
    error: int | None = None


@dataclass(frozen=True)
class HistoryEntry:
    """The recordings of a program at one commit, on one device, with one version of PyTorch.

    Attributes:
        program: The program's name, which is the name of the folder of a recording that profkit
            made; else empty.
        revision: The git commit, or None where it was not recorded; then the entry is one
            recording.
        torch: PyTorch's version, or None.
        devices: The GPUs, or without them the processor.
        recorded_unix_ns: Time of the first recording, in nanoseconds since 1970, or None.
        paths: The recordings or reports.
        figures: By the name of their budget.
        n_findings: Number of findings by severity, in the recording with most.
    """

    program: str
    revision: str | None
    torch: str | None
    devices: tuple[str, ...]
    recorded_unix_ns: int | None
    paths: tuple[str, ...]
    figures: Mapping[str, HistoryFigure] = field(default_factory=dict)
    n_findings: Mapping[Severity, int] = field(default_factory=dict)


@dataclass(frozen=True)
class FindingHistory:
    """When a finding was there: the finding of one rule in one function of a program.

    Attributes:
        rule: The rule's id.
        name: The rule's name.
        program: As in :class:`HistoryEntry`.
        severity: In the last entry that has it.
        location: In the last entry that has it, or None.
        first: Index of the first entry that has it.
        last: Index of the last one.
        n: Number of entries that have it.
        fixed: Index of the first entry after ``last`` that does not have it although its check was
            not skipped; None if there is none.
    """

    rule: str
    name: str
    program: str
    severity: Severity
    location: Location | None
    first: int
    last: int
    n: int
    fixed: int | None = None


@dataclass(frozen=True)
class FigureLine:
    """A figure over the commits, of one program on one device.

    Attributes:
        name: The figure's name.
        title: As shown to people.
        unit: Its unit.
        program: As in :class:`HistoryEntry`.
        devices: As in :class:`HistoryEntry`.
        entries: Indices of the entries that have it.
    """

    name: str
    title: str
    unit: BudgetUnit
    program: str
    devices: tuple[str, ...]
    entries: tuple[int, ...]


@dataclass(frozen=True)
class History(Renderable):
    """Figures and findings over commits.

    Attributes:
        profkit: profkit's version.
        entries: By time; entries of unknown time first, in the given order.
        lines: The figures; times on different devices are on different lines.
        findings: Findings that still occur, then fixed findings, the last fixed first.
        schema: Name and version of this layout.
    """

    profkit: str
    entries: tuple[HistoryEntry, ...]
    lines: tuple[FigureLine, ...] = ()
    findings: tuple[FindingHistory, ...] = ()
    schema: str = SCHEMA
