"""What the shares of a headline are of: all steps, those of the usual kind, or a recording."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from statistics import mean, median
from typing import Final

from profkit.dataclass import dataclass
from profkit.index.device.breakdown import build_parts
from profkit.index.host.steps import divide_by_steps
from profkit.model.critical_path import CriticalPathSummary, PathKindName, PathLine, PathPart
from profkit.model.location import Location
from profkit.model.report import Report
from profkit.model.step_summary import Breakdown, StepSummary, TimePart
from profkit.present.labels import MIN_SKEW, is_on_cpu, step_range
from profkit.units import format_ns

MIN_SHARE: Final = 0.1
"""A smaller part of the time is not in the headline."""
NEARLY_ALL: Final = 0.9
"""A part with this share of a whole is as good as the whole."""
BUSY_MACHINE: Final = "busy-machine"
"""The fault of a recording whose times other programs have lengthened."""
_IMPORT: Final = "<frozen importlib"
_MIN_IMPORT_SHARE: Final = 0.5
_MIN_USUAL_STEPS: Final = 2
"""A single step may be the exception itself."""
_MIN_USUAL_SHARE: Final = 2 / 3
"""With fewer steps of one kind the others are no exceptions."""
_MAX_USUAL: Final = 0.5
"""Ratio to the median below which a step runs something else: noise only makes steps longer."""
_MIN_DIFFERENCE: Final = 0.1
"""The mean of all steps that is that near to the mean of the usual ones describes them, too."""
_MIN_SPREAD: Final = 0.2
"""Mean distance from the median from which no single step time describes the steps."""


@dataclass(frozen=True)
class Window:
    """The time that the sentences describe.

    Attributes:
        report: The report that they are about.
        breakdown: The parts of this time.
        path: The critical path of this time; None where it is not known.
        left_out: Places of the steps that are no part of this time, since they take much longer
            than the others, or much less, as an evaluation among steps of training does.
    """

    report: Report
    breakdown: Breakdown
    path: CriticalPathSummary | None
    left_out: tuple[int, ...] = ()

    @cached_property
    def steps(self) -> tuple[StepSummary, ...]:
        """Return the steps that this time consists of."""
        steps = enumerate(self.report.summary.steps)
        return tuple(step for place, step in steps if place not in self.left_out)

    @cached_property
    def other_steps(self) -> tuple[StepSummary, ...]:
        """Return the steps that this time leaves out."""
        return tuple(self.report.summary.steps[place] for place in self.left_out)

    @property
    def follows_long_start(self) -> bool:
        """Return whether the steps that this time leaves out are the first ones, and long."""
        is_start = self.left_out == tuple(range(len(self.left_out)))
        lengths = [step.time_ns for step in self.other_steps]
        return bool(lengths) and is_start and min(lengths) > self.breakdown.mean_ns

    def find_part(self, kind: str) -> TimePart | None:
        """Return the part of one kind; None if there is none."""
        return next((part for part in self.breakdown.parts if part.kind == kind), None)

    def describe(self) -> str:
        """Return what a share is of: ``each 174 ms step``, or what was recorded without steps."""
        breakdown, report = self.breakdown, self.report
        of_rank = f" of rank {report.source.rank}" if report.ranks else ""
        where = self._where()
        if breakdown.per_step_ns is not None:
            kind = "later " if self.follows_long_start else "usual " if self.left_out else ""
            step = f"each {kind}{format_ns(breakdown.per_step_ns)} step{self._step_range()}"
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

    def _step_range(self) -> str:
        """Return `` (2.10 ms to 8.40 ms)`` where the mean describes few steps; else empty."""
        lengths = [step.time_ns for step in self.steps] or [0]
        usual = median(lengths)
        distance_ns = mean(abs(length - usual) for length in lengths)
        is_wide = not self.left_out and distance_ns > _MIN_SPREAD * usual
        return f" ({step_range(self.report)})" if is_wide else ""


def choose_window(report: Report) -> Window | None:
    """Return the time that a headline describes; None where no time could be attributed.

    Where some steps take so much longer or shorter than most that the mean describes none of them,
    it is the others: what happens once, or runs something else, is described apart.
    """
    breakdown, path = report.summary.breakdown, report.summary.critical_path
    if breakdown is None or not breakdown.total_ns:
        return None
    left_out = _find_other_kinds(report, breakdown)
    # Of two steps the longer one may be the usual one, unless it imports.
    if not left_out and _imports_in_first_of_two(report):
        left_out = (0,)
    if not left_out:
        return Window(report, breakdown, path)

    places = [place for place in range(breakdown.n_steps) if place not in left_out]
    usual = _break_down(breakdown, [report.summary.steps[place] for place in places])
    return Window(report, usual, find_path_of(path, places), left_out)


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


def find_path_of(
    path: CriticalPathSummary | None, places: Sequence[int]
) -> CriticalPathSummary | None:
    """Return the critical path of the steps at some places; None where it is not known."""
    if path is None or len(path.steps) != path.n_steps:
        return None
    steps = tuple(path.steps[place] for place in places)
    total_ns = sum(step.makespan_ns for step in steps)
    if not total_ns:
        return None

    ns_by_kind: Counter[PathKindName] = Counter()
    by_line: dict[tuple[PathKindName, Location], list[PathLine]] = defaultdict(list)
    for step in steps:
        ns_by_kind.update({part.kind: part.ns for part in step.parts})
        for line in step.lines:
            by_line[line.kind, line.location].append(line)
    lines = [_add_lines(same, len(steps), total_ns) for same in by_line.values()]

    return replace(
        path,
        n_steps=len(steps),
        total_ns=total_ns,
        per_step_ns=total_ns // len(steps),
        parts=tuple(
            PathPart(kind, ns, ns // len(steps), ns / total_ns)
            for kind, ns in ns_by_kind.most_common()
        ),
        lines=tuple(sorted(lines, key=lambda line: -line.ns)),
        entries=(),
        blocking=(),
        functions=(),
        steps=steps,
    )


def _add_lines(lines: Sequence[PathLine], n_steps: int, total_ns: int) -> PathLine:
    """Return what one line takes in several steps, named after what takes longest in one.

    Args:
        lines: The line in each step that it is among the costliest of.
        total_ns: The time of all these steps.
    """
    ns = sum(line.ns for line in lines)
    ns_by_name: Counter[str] = Counter()
    for line in lines:
        ns_by_name[line.main_name] += round(line.ns * line.main_share / line.share)
    ((name, name_ns),) = ns_by_name.most_common(1)

    return PathLine(
        lines[0].kind,
        lines[0].location,
        ns,
        ns // n_steps,
        ns / total_ns,
        sum(line.n_segments for line in lines),
        sum(line.n_events for line in lines),
        name,
        name_ns / total_ns,
    )


def _find_other_kinds(report: Report, breakdown: Breakdown) -> tuple[int, ...]:
    """Return the places of steps that take much longer or less long than most; none if few do not.

    They are left out only where they move the mean: a hundredth step that takes twice as long is a
    part of what the steps take.
    """
    steps = report.summary.steps
    has_parts = all(step.parts for step in steps)
    if not steps or report.ranks or breakdown.n_steps != len(steps) or not has_parts:
        return ()
    # A step may be long because other programs took its core.
    if any(fault.name == BUSY_MACHINE for fault in report.health):
        return ()

    lengths = [step.time_ns for step in steps]
    middle = median(lengths)
    is_usual = [_MAX_USUAL * middle <= length <= MIN_SKEW * middle for length in lengths]
    usual = [length for length, is_kept in zip(lengths, is_usual, strict=True) if is_kept]
    if len(usual) < max(_MIN_USUAL_STEPS, _MIN_USUAL_SHARE * len(steps)):
        return ()
    if abs(mean(lengths) - mean(usual)) <= _MIN_DIFFERENCE * mean(usual):
        return ()
    return tuple(place for place, is_kept in enumerate(is_usual) if not is_kept)


def _break_down(breakdown: Breakdown, steps: Sequence[StepSummary]) -> Breakdown:
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
