"""What the shares of a headline are of: all steps, the steps after a long start, or a recording."""

from collections import Counter, defaultdict
from dataclasses import replace
from statistics import mean, median
from typing import Final

from profkit.dataclass import dataclass
from profkit.index.device.breakdown import build_parts
from profkit.index.host.steps import divide_by_steps
from profkit.model.critical_path import CriticalPathSummary, PathKindName, PathLine
from profkit.model.location import Location
from profkit.model.report import Report
from profkit.model.step_summary import Breakdown, StepSummary, TimePart
from profkit.present.labels import MIN_SKEW, is_on_cpu
from profkit.units import format_ns

MIN_SHARE: Final = 0.1
"""A smaller part of the time is not in the headline."""
NEARLY_ALL: Final = 0.9
"""A part with this share of a whole is as good as the whole."""
BUSY_MACHINE: Final = "busy-machine"
"""The fault of a recording whose times other programs have lengthened."""
_IMPORT: Final = "<frozen importlib"
_MIN_IMPORT_SHARE: Final = 0.5
_MIN_LATER_STEPS: Final = 2
"""A single later step may be the exception itself."""


@dataclass(frozen=True)
class Window:
    """The time that the sentences describe.

    Attributes:
        report: The report that they are about.
        breakdown: The parts of this time.
        path: The critical path of this time; None where it is not known.
        first: The steps at the beginning that take much longer than the others, which this time
            leaves out.
    """

    report: Report
    breakdown: Breakdown
    path: CriticalPathSummary | None
    first: tuple[StepSummary, ...] = ()

    def find_part(self, kind: str) -> TimePart | None:
        """Return the part of one kind; None if there is none."""
        return next((part for part in self.breakdown.parts if part.kind == kind), None)

    def describe(self) -> str:
        """Return what a share is of: ``each 174 ms step``, or what was recorded without steps."""
        breakdown, report = self.breakdown, self.report
        of_rank = f" of rank {report.source.rank}" if report.ranks else ""
        where = self._where()
        if breakdown.per_step_ns is not None:
            later = "later " if self.first else ""
            step = f"each {later}{format_ns(breakdown.per_step_ns)} step{self._usual_step()}"
            return f"{step}{of_rank}{where}{self._time_on_host()}"

        length = format_ns(breakdown.total_ns)
        no_steps = "no complete step" if report.summary.n_incomplete_steps else "no steps"
        if breakdown.on_device:
            return f"the {length} from first to last device work ({no_steps})"
        no_work = "" if is_on_cpu(report) else " and no device work"
        return f"the recording{of_rank} of {length}{where}, which has {no_steps}{no_work}"

    def _where(self) -> str:
        """Return where a program without device work ran; empty where a device worked."""
        if self.breakdown.on_device:
            return ""
        if is_on_cpu(self.report):
            return " on the CPU"
        # Its calls and its names tell that a device worked, which the recording lacks.
        return "" if self.breakdown.per_step_ns is not None else " on the host"

    def _time_on_host(self) -> str:
        """Return `` (78.8 ms on the host, which runs ahead)`` if it does; else empty."""
        host_ns = self.breakdown.host_per_step_ns
        return "" if host_ns is None else f" ({format_ns(host_ns)} on the host, which runs ahead)"

    def _usual_step(self) -> str:
        """Return the median step time where a few long steps dominate the mean; else empty."""
        if self.first:
            return ""
        lengths = [step.time_ns for step in self.report.summary.steps] or [0]
        usual = median(lengths)
        return f" (median {format_ns(usual)})" if mean(lengths) > MIN_SKEW * usual else ""


def choose_window(report: Report) -> Window | None:
    """Return the time that a headline describes; None where no time could be attributed.

    Where the first steps take so much longer than the others that the mean describes no step, it is
    the others: what happens once does not limit a program that goes on.
    """
    breakdown, path = report.summary.breakdown, report.summary.critical_path
    if breakdown is None or not breakdown.total_ns:
        return None
    n_first = _count_long_first_steps(report, breakdown)
    # Of two steps the longer one may be the usual one, unless it imports.
    if not n_first and _imports_in_first_of_two(report):
        n_first = 1
    if not n_first:
        return Window(report, breakdown, path)

    steps = report.summary.steps
    later = _break_down(breakdown, steps[n_first:])
    return Window(report, later, find_path_of(path, slice(n_first, None)), steps[:n_first])


def find_import_time(path: CriticalPathSummary | None) -> int:
    """Return how many nanoseconds of a path are in Python's imports, which happen once."""
    entries = path.entries if path is not None else ()
    return sum(entry.ns for entry in entries if _IMPORT in entry.name)


def _imports_in_first_of_two(report: Report) -> bool:
    """Return whether imports are why the first of two steps is longer than the other one."""
    steps, breakdown = report.summary.steps, report.summary.breakdown
    is_pair = len(steps) == 2 and breakdown is not None and breakdown.n_steps == 2  # noqa: PLR2004  (a pair)
    if not is_pair or report.ranks or not all(step.parts for step in steps):
        return False
    excess_ns = steps[0].time_ns - steps[1].time_ns
    return 0 < excess_ns <= find_import_time(report.summary.critical_path) / _MIN_IMPORT_SHARE


def find_path_of(path: CriticalPathSummary | None, of: slice) -> CriticalPathSummary | None:
    """Return the critical path of some of the steps; None where it is not known."""
    if path is None or len(path.steps) != path.n_steps:
        return None
    steps = path.steps[of]
    total_ns = sum(step.makespan_ns for step in steps)
    if not total_ns:
        return None

    ns_by_line: dict[tuple[PathKindName, Location], Counter[str]] = defaultdict(Counter)
    n_segments: Counter[tuple[PathKindName, Location]] = Counter()
    for segment in (segment for step in steps for segment in step.segments):
        key = segment.kind, replace(segment.location, op=None)
        ns_by_line[key][segment.op or ""] += segment.ns
        n_segments[key] += 1

    lines = []
    for (kind, location), ns_by_name in ns_by_line.items():
        ns, n = ns_by_name.total(), n_segments[kind, location]
        ((name, name_ns),) = ns_by_name.most_common(1)
        lines.append(
            PathLine(
                kind, location, ns, ns // len(steps), ns / total_ns, n, n, name, name_ns / total_ns
            )
        )
    lines.sort(key=lambda line: -line.ns)
    return replace(
        path,
        n_steps=len(steps),
        total_ns=total_ns,
        per_step_ns=total_ns // len(steps),
        parts=(),
        lines=tuple(lines),
        entries=(),
        blocking=(),
        functions=(),
        steps=steps,
    )


def _count_long_first_steps(report: Report, breakdown: Breakdown) -> int:
    """Return how many steps at the beginning are long; 0 where long ones come later, too."""
    lengths = [step.time_ns for step in report.summary.steps]
    has_parts = all(step.parts for step in report.summary.steps)
    if not lengths or report.ranks or breakdown.n_steps != len(lengths) or not has_parts:
        return 0
    # A step may be long because other programs took its core.
    if any(fault.name == BUSY_MACHINE for fault in report.health):
        return 0
    usual = median(lengths)
    if mean(lengths) <= MIN_SKEW * usual:
        return 0

    is_long = [length > MIN_SKEW * usual for length in lengths]
    n_first = is_long.index(False)
    is_later_long = any(is_long[n_first:])
    return 0 if is_later_long or len(lengths) - n_first < _MIN_LATER_STEPS else n_first


def _break_down(breakdown: Breakdown, steps: tuple[StepSummary, ...]) -> Breakdown:
    """Return the breakdown of some of the steps."""
    total_ns, n_steps = sum(step.time_ns for step in steps), len(steps)
    ns_by_kind: Counter[str] = Counter()
    for step in steps:
        ns_by_kind.update({part.kind: part.ns for part in step.parts})
    runs_ahead = breakdown.host_per_step_ns is not None
    return replace(
        breakdown,
        n_steps=n_steps,
        total_ns=total_ns,
        per_step_ns=divide_by_steps(total_ns, n_steps),
        parts=build_parts(ns_by_kind, total_ns, n_steps),
        host_per_step_ns=round(mean(step.dur_ns for step in steps)) if runs_ahead else None,
    )
