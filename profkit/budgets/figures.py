"""Figures that a budget can limit."""

import statistics
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from typing import Final

from profkit.dataclass import dataclass
from profkit.engine.needs import MONITORED_STEPS
from profkit.engine.registry import matches, rules
from profkit.index.trend import MAD_TO_SIGMA
from profkit.model.check import BudgetUnit
from profkit.model.finding import SEVERITIES, Finding, Severity
from profkit.model.memory_summary import AllocationSite, MemorySummary, PeakMemory, PeakSite
from profkit.model.report import Report
from profkit.model.step_summary import StepSummary

FINDINGS: Final = "findings"
STEP_TIME: Final = "step_ms"
PEAK: Final = "peak"
SYNCS: Final = "syncs"
GROWTH: Final = "growth"
NO_STEPS: Final = "The recording has no steps."
_NO_DEVICE: Final = "No GPU work was recorded."
_NO_MEMORY: Final = "Memory was not recorded; `profkit run` and `profile_memory=True` record it."
_TOO_FEW_STEPS: Final = (
    "Growth was not evaluated; `profkit run` evaluates it in programs with enough steps."
)
_MANY: Final = 3
"""The least number of measurements that shows how much they vary. From this number of recordings
on, each recording is one measurement: steps of one run are alike, runs are not."""
_OF_MEDIAN: Final = 1.2533
"""Standard error of a median divided by the mean's, in a normal distribution: sqrt(pi / 2)."""
_OF_FEW: Final = {3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}
"""By how much the median absolute deviation of so few measurements is too small on average.

Source: Croux and Rousseeuw, "Time-efficient algorithms for two highly robust estimators of scale"
(1992), which has n / (n - 0.8) for more."""
_CERTAIN: Final = 3
"""How many standard errors count as noise. Of checks against a baseline without a change, and
without a margin, 3% are beyond with three steps on both sides, 0.5% with ten."""


@dataclass(frozen=True)
class Unknown:
    """A figure that a recording does not have, and why."""

    reason: str


Values = Sequence[int] | Unknown
"""One value for each step, or one for the recording."""


@dataclass(frozen=True)
class BudgetFigure:
    """A figure that a budget can limit.

    Attributes:
        name: As in the configuration.
        title: As shown to people, such as ``median step time``.
        unit: Of the figure in a report; names that end in ``_ms`` have limits in milliseconds.
        of: Its values in a report.
        causes: Ids, names or families of the rules that explain a higher figure; empty for all.
        is_time: Whether it varies from run to run of the same program on the same device.
        severities: Of a number of findings, the severities that count; else empty.
    """

    name: str
    title: str
    unit: BudgetUnit
    of: Callable[[Report], Values]
    causes: tuple[str, ...] = ()
    is_time: bool = False
    severities: tuple[Severity, ...] = ()


@dataclass(frozen=True)
class Measured:
    """A figure over all recordings.

    Attributes:
        value: The median of times, or the largest of other values.
        error: Three standard errors of the median of times, or None with fewer than three
            measurements; 0 for other values.
        n: Number of measurements.
    """

    value: int
    error: int | None
    n: int


def measure(figure: BudgetFigure, reports: Sequence[Report]) -> Measured | Unknown:
    """Measure a figure over all recordings that have it; unknown if none has."""
    by_report = [figure.of(report) for report in reports]
    recorded = [values for values in by_report if not isinstance(values, Unknown)]
    if not recorded:
        reasons = [values.reason for values in by_report if isinstance(values, Unknown)]
        return Unknown(" ".join(dict.fromkeys(reasons)) or "There is no recording.")

    values = [value for step_values in recorded for value in step_values]
    if not figure.is_time:
        return Measured(max(values), 0, len(values))

    if len(recorded) >= _MANY:
        values = [round(statistics.median(step_values)) for step_values in recorded]
    middle, n = statistics.median(values), len(values)
    if n < _MANY:
        return Measured(round(middle), None, n)

    # The median absolute deviation ignores single slow steps, which a standard deviation squares.
    deviation = statistics.median(abs(value - middle) for value in values)
    sigma = MAD_TO_SIGMA * _OF_FEW.get(n, n / (n - 0.8)) * deviation
    return Measured(round(middle), round(_CERTAIN * _OF_MEDIAN * sigma / n**0.5), n)


def measure_without_delay(figure: BudgetFigure, reports: Sequence[Report]) -> Measured | Unknown:
    """Measure a time without the delay by other programs that had the machine's cores."""

    def of(report: Report) -> Values:
        values = figure.of(report)
        if isinstance(values, Unknown):
            return values

        share = _share_delayed_by_others(report)
        return [round(value * (1 - share)) for value in values]

    return measure(replace(figure, of=of), reports)


def _share_delayed_by_others(report: Report) -> float:
    """Return the least share of the recording in which others left the thread without a core.

    If the program's own threads and ranks are the reason, at least one of them runs meanwhile.
    """
    cpu = report.source.cpu
    if cpu is None or cpu.delayed_ns is None or cpu.window_ns <= 0:
        return 0.0

    of_rank_ns = cpu.process_ns + (cpu.children_ns or 0)
    of_program_ns = of_rank_ns * (report.source.world_size or 1) - cpu.thread_ns
    return min(max(0.0, (cpu.delayed_ns - of_program_ns) / cpu.window_ns), 1.0)


def _of_steps(
    value: Callable[[StepSummary], int | None], reason: str = NO_STEPS
) -> Callable[[Report], Values]:
    """Return a function that reads a figure of each step."""

    def of(report: Report) -> Values:
        steps = report.summary.steps
        values = [n for n in map(value, steps) if n is not None]
        if not values:
            return Unknown(reason if steps else NO_STEPS)
        return values

    return of


def _exposed_ns(step: StepSummary) -> int | None:
    if step.gpu_busy_ns is None and not any(part.kind == "communication" for part in step.parts):
        return None
    return sum(part.ns for part in step.parts if part.kind == "communication")


def _number_of(rule: str, count: Callable[[Finding], int]) -> Callable[[Report], Values]:
    """Return a function that counts the findings of a rule that has no least cost."""

    def of(report: Report) -> Values:
        ids = rule_ids([rule])
        skipped = [check for check in report.unchecked if check.rule in ids]
        # A rule that was skipped has counted nothing, which does not mean 0.
        if skipped:
            return Unknown(skipped[0].reason)
        return [sum(count(finding) for finding in report.findings if finding.rule in ids)]

    return of


def _peak(report: Report) -> Values:
    """Return the highest allocated bytes of the device with most: GPUs, or else the host."""
    memory = report.summary.memory
    if memory is None:
        return Unknown(_NO_MEMORY)

    in_trace = [peak_bytes(peak) for peak in _peaks(memory)]
    in_snapshot = [device.peak_active_bytes for device in memory.devices]
    in_steps = [step.allocated_bytes or step.tensor_bytes or 0 for step in memory.steps]

    # Monitoring sees tensors at the ends of steps: a trace shows how many more a step has.
    within_step = _bytes_within_steps(memory)
    in_steps = [n_bytes + within_step for n_bytes in in_steps]

    peak = max([*in_trace, *in_snapshot, *in_steps], default=0)
    return [peak] if peak else Unknown(_NO_MEMORY)


def _bytes_within_steps(memory: MemorySummary) -> int:
    """Return how much more the host had at its peak than at the end of the steps, if traced.

    Monitoring has all tensors, but at the ends of steps only; a trace has every allocation, but
    none from before it began.
    """
    host = [peak.window_bytes for peak in _peaks(memory) if peak.device == "cpu"]
    return max((host[0] or 0) - (memory.unfreed_bytes or 0), 0) if host else 0


def _peaks(memory: MemorySummary) -> list[PeakMemory]:
    """Return a trace's peaks: of GPUs, or else of the host."""
    return [peak for peak in memory.peak if peak.device != "cpu"] or list(memory.peak)


def peak_bytes(peak: PeakMemory) -> int:
    """Return the bytes of a peak: on the host, only what was allocated in the recording."""
    if peak.device == "cpu" and peak.window_bytes is not None:
        return peak.window_bytes
    return peak.bytes


def peak_sites(reports: Sequence[Report]) -> tuple[PeakSite, ...]:
    """Return the lines with the most memory at the highest peak; empty if they are not known."""
    peaks: list[tuple[int, tuple[PeakSite, ...]]] = []
    for memory in (report.summary.memory for report in reports):
        if memory is not None:
            peaks += [(peak_bytes(peak), peak.sites) for peak in _peaks(memory)]
            peaks += [
                (device.peak_active_bytes, tuple(map(_peak_site, device.peak_sites)))
                for device in memory.devices
            ]

    return max(peaks, key=lambda peak: peak[0], default=(0, ()))[1]


def _peak_site(site: AllocationSite) -> PeakSite:
    return PeakSite(site.location, site.n, site.bytes)


def _growth(report: Report) -> Values:
    """Return the growth of memory in bytes per step, over all findings on growth."""
    memory = report.summary.memory
    if memory is None or not memory.n_evaluated_steps:
        return Unknown(_TOO_FEW_STEPS)
    ids = _of_growth()
    grown = [finding.cost.per_step_bytes or 0 for finding in report.findings if finding.rule in ids]
    return [sum(grown)]


def _of_growth() -> frozenset[str]:
    """Return the rules that evaluate the memory of a monitored program."""
    return frozenset(rule.INFO.id for rule in rules() if MONITORED_STEPS in rule.INFO.needs)


FIGURES: Final = (
    BudgetFigure(
        STEP_TIME, "median step time", "ns", _of_steps(lambda step: step.time_ns), is_time=True
    ),
    BudgetFigure(
        "gpu_ms", "median GPU busy time per step", "ns",
        _of_steps(lambda step: step.gpu_busy_ns, _NO_DEVICE), ("KER", "CMP"), is_time=True,
    ),
    BudgetFigure(
        "exposed_communication_ms", "median exposed communication per step", "ns",
        _of_steps(_exposed_ns, "No collectives were recorded."), ("COM",), is_time=True,
    ),
    BudgetFigure(
        "kernels", "kernels launched per step", "count",
        _of_steps(lambda step: step.n_kernels, _NO_DEVICE), ("KER", "CMP"),
    ),
    BudgetFigure(
        SYNCS, "host-device syncs per step", "count",
        _of_steps(lambda step: step.n_syncs), ("SYN",),
    ),
    BudgetFigure(
        "graph_breaks", "lines with graph breaks", "count",
        _number_of("graph-breaks", lambda _: 1), ("graph-breaks",),
    ),
    BudgetFigure(
        "recompiles", "recompilations", "count",
        _number_of("recompiles", lambda finding: finding.n), ("recompiles",),
    ),
    BudgetFigure(PEAK, "peak memory", "bytes", _peak, ("MEM",)),
    BudgetFigure(GROWTH, "memory growth per step", "bytes", _growth, ("MEM",)),
)  # fmt: skip
"""All but the numbers of findings."""


def build_findings_figure(word: str) -> BudgetFigure | None:
    """Build the number of findings of at least a severity, or of some rules; None without rules.

    Args:
        word: A severity, or a rule's id, name or family.
    """
    is_severity = word in SEVERITIES
    severe = SEVERITIES[SEVERITIES.index(word) :] if is_severity else SEVERITIES
    causes = () if is_severity else (word,)

    ids = rule_ids(causes)
    if not ids:
        return None

    subject = f"severity {' or '.join(severe)}" if is_severity else word
    return BudgetFigure(
        f"{FINDINGS}.{word}",
        f"findings of {subject}",
        "count",
        lambda report: [len(_among(report, ids, severe))],
        causes,
        severities=severe,
    )


def rule_ids(words: Iterable[str]) -> frozenset[str]:
    """Return the ids of the rules that words select: ids, names or families; all without words."""
    selected = tuple(words)
    return frozenset(
        rule.INFO.id
        for rule in rules()
        if not selected or any(matches(rule.INFO, word) for word in selected)
    )


def _among(report: Report, ids: Container[str], severe: Container[str]) -> list[Finding]:
    return [
        finding for finding in report.findings if finding.rule in ids and finding.severity in severe
    ]


def find_causes(figure: BudgetFigure, reports: Sequence[Report]) -> list[Finding]:
    """Return the findings that explain a higher figure, the costliest of each report first."""
    ids = _of_growth() if figure.name == GROWTH else rule_ids(figure.causes)
    severe = figure.severities or SEVERITIES
    return [finding for report in reports for finding in _among(report, ids, severe)]
