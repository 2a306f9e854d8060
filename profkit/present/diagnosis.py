"""The headline of a report: what limits the program, and what to do first.

:mod:`profkit.present.limiters` chooses what limits it. What to do follows: the finding with the
highest cost, or what would tell more where nothing explains most of the time. Three sentences are
read aloud; what has no room among them is said in the sections below.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from profkit.dataclass import dataclass
from profkit.engine.wording import counted
from profkit.model.finding import Finding
from profkit.model.report import Report
from profkit.model.work_summary import FunctionSummary
from profkit.names import visible
from profkit.present.labels import (
    at_place,
    cost_share,
    cost_text,
    inline_title,
    is_free,
    is_on_cpu,
)
from profkit.present.limiters import (
    BUSY_MACHINE,
    MAJORITY,
    Candidate,
    Cause,
    Window,
    choose,
    choose_window,
    describe_job_limiter,
    find_candidates,
    find_job_limiter,
    find_recurrent_module,
    find_restart_finding,
    has_named_python,
    main_function,
    runs_short_operators,
    spends_time_in_calls,
)
from profkit.present.memory_text import (
    NO_PROBLEMS,
    has_oom,
    memory_sentences,
    no_memory_findings,
)
from profkit.present.ranks import describe_job
from profkit.present.skipped_checks import with_skipped_checks
from profkit.units import format_ns, format_share

_MIN_IDLE_SHARE: Final = 0.25
"""Less idle time of a device is usual between steps and at their ends, and needs no explanation."""
_MIN_FINDING_SHARE: Final = 0.03
"""A smaller cost is not in the headline, even if it is the highest."""
_MIN_STEPS_SHARE: Final = 0.5
"""If steps cover less of the recording, the headline says so."""
_MAX_SENTENCES: Final = 3
"""More are not read; why figures are less reliable stands after them."""
_NOTHING_RECORDED: Final = "nothing-recorded"
_LOST_EVENTS: Final = "lost-device-events"
_MIN_DISTORTING_SHARE: Final = 0.4
"""A thread without a core for so long waits within single operators: their shares are chance."""
_SLOWING_STEPS: Final = "slowing-steps"
_UNTYPICAL_STEPS: Final = "untypical-steps"
_UNUSED_GPU: Final = "unused-gpu"
_UNRECORDED_WORK: Final = "unrecorded-device-work"
_RECORD_ALL: Final = "Record all work of the device, to see what takes its time."
_WARM_UP: Final = "Warm up before you record, to see what the program does from then on."
_FEWER_OPERATORS: Final = (
    "Each operator takes longer to call than to compute: fewer, larger ones would take less."
)
_LARGER_BATCHES: Final = (
    "Its operators take longer to call than to compute: larger batches, or fewer and larger "
    "operators, would take less per sample."
)
_RECURRENT: Final = (
    "`{}` runs operators for each element of a sequence, and each takes longer to call than to "
    "compute: larger batches or shorter sequences would take less per sample."
)
_REMARKS: Final = (Cause.COLD_START, Cause.UNRECORDED, Cause.OTHER_STEPS)
"""What the headline names even if it is not what limits the program, in this order."""
_ONE_TIME: Final = (Cause.COLD_START, Cause.CAPTURE)
"""What happens once per process: later steps are the ones to record."""
_ON_CPU: Final = {Cause.PYTHON, Cause.OPERATORS}
_FAULTY: Final = (Cause.IDLE, Cause.LIBRARY, Cause.PYTHON, Cause.WAITING, Cause.DATA)
"""What no program has to spend most of its time in: without a finding the reason is unknown."""


@dataclass(frozen=True)
class _Diagnosis:
    """What the headline says of the time that a report describes.

    Attributes:
        report: The report.
        window: The time; None where none could be attributed.
        candidates: All causes that take a part of it.
        limiters: The candidates that were chosen.
    """

    report: Report
    window: Window | None
    candidates: tuple[Candidate, ...]
    limiters: tuple[Candidate, ...]

    @property
    def causes(self) -> set[Cause]:
        """The causes that were chosen."""
        return {limiter.cause for limiter in self.limiters}

    @property
    def is_incomplete(self) -> bool:
        """Return whether devices worked on something that is not in the recording."""
        return any(candidate.cause is Cause.UNRECORDED for candidate in self.candidates)


def _diagnose(report: Report) -> _Diagnosis:
    """Choose what limits a program."""
    window = choose_window(report)
    candidates = tuple(find_candidates(window))
    return _Diagnosis(report, window, candidates, tuple(choose(candidates)))


def headline(report: Report) -> str:
    """Return what limits the program and what to do first, in one to three sentences.

    Why figures are less reliable follows them. Of a trace in which nothing was recorded, it is that
    and what to do.
    """
    return " ".join(headline_sentences(report))


def headline_sentences(report: Report) -> list[str]:
    """Return the sentences of :func:`headline`, at least one."""
    nothing = next((fault for fault in report.health if fault.name == _NOTHING_RECORDED), None)
    if nothing is not None:
        return [visible(nothing.message), visible(nothing.fix)]
    if report.summary.breakdown is None and (on_memory := memory_sentences(report)):
        read = _fit(on_memory[:1], on_memory[1:], _memory_fix(report))
        return [*read, *cautions(report)]

    diagnosis = _diagnose(report)
    of_job = find_job_limiter(report)
    limiters = [limiter.sentence for limiter in diagnosis.limiters] or [_without_times(report)]
    on_job = tuple(describe_job(report, is_explained=of_job is not None))
    remarks = [*on_job, *_remarks(diagnosis)]
    if of_job is not None:
        # What limits one of its ranks is a consequence of what limits the job.
        remarks = [*on_job, *limiters]
        limiters = [describe_job_limiter(report, of_job)]

    explained = find_restart_finding(report) if Cause.RESTARTS in diagnosis.causes else None
    read = _fit(limiters, remarks, _what_to_do(diagnosis, of_job or explained))
    return read if diagnosis.is_incomplete else [*read, *cautions(report)]


def _fit(limiters: list[str], remarks: list[str], fix: list[str]) -> list[str]:
    """Return as many sentences as are read: limiters and fix, and remarks where there is room."""
    n_remarks = max(0, _MAX_SENTENCES - len(limiters) - len(fix))
    return [*limiters, *remarks[:n_remarks], *fix][:_MAX_SENTENCES]


def _without_times(report: Report) -> str:
    if report.source.kind == "flight-recorder":
        calls = counted(report.source.n_events, "call")
        return f"These are dumps of torch's FlightRecorder, with {calls} of collectives."
    return "No event time could be attributed."


def _remarks(diagnosis: _Diagnosis) -> Iterator[str]:
    """Yield what is said besides what limits the program, the most important first."""
    report, window = diagnosis.report, diagnosis.window
    # Without steps the first sentence has said it.
    is_of_steps = window is not None and window.breakdown.per_step_ns is not None
    if is_of_steps and not _has_device_work(report):
        yield "No device work was recorded."
    unused = next((finding for finding in report.findings if finding.name == _UNUSED_GPU), None)
    if unused is not None:
        yield f"{unused.title}."
    yield from _trend(report)

    # What happens once, what makes all figures uncertain and what the figures leave out is named.
    remarks = [
        candidate
        for candidate in diagnosis.candidates
        if candidate.cause in _REMARKS and candidate not in diagnosis.limiters
    ]
    remarks.sort(key=lambda candidate: _REMARKS.index(candidate.cause))
    yield from (candidate.sentence for candidate in remarks)
    yield from _coverage(window)


def _has_device_work(report: Report) -> bool:
    """Return whether device work was recorded, or there is none, as the program ran on a CPU."""
    breakdown = report.summary.breakdown
    return breakdown is None or breakdown.on_device or is_on_cpu(report)


def _coverage(window: Window | None) -> Iterator[str]:
    """Yield how much of the recording is outside of the steps, which the figures leave out."""
    if window is None:
        return
    report, breakdown = window.report, window.breakdown
    # Steps of a loop follow each other: what is between those that profkit recorded is its own.
    is_of_profkit = report.source.overhead_ratio is not None
    is_loop = report.source.step_origin == "profiler" and not report.summary.n_incomplete_steps
    if is_of_profkit and is_loop:
        return

    steps_ns = breakdown.total_ns + sum(step.time_ns for step in window.other_steps)
    outside_ns = report.summary.window_ns - steps_ns
    is_large = outside_ns > (1 - _MIN_STEPS_SHARE) * report.summary.window_ns
    if is_large and breakdown.per_step_ns is not None:
        share = format_share(outside_ns / report.summary.window_ns)
        yield f"{format_ns(outside_ns)} of the recording ({share}) are outside of the steps."


def _trend(report: Report) -> Iterator[str]:
    """Yield what the run's steps take, at its end or on average, that no recorded one shows."""
    for finding in report.findings:
        first_ns = finding.evidence.get("first_steps_ns")
        last_ns = finding.evidence.get("last_steps_ns")
        if finding.name != _SLOWING_STEPS:
            continue
        if isinstance(first_ns, int) and isinstance(last_ns, int) and first_ns > 0:
            times = last_ns / first_ns
            yield f"Steps take {times:.1f} times as long at the end of the run as at its beginning."
    yield from (fault.message for fault in report.health if fault.name == _UNTYPICAL_STEPS)


def cautions(report: Report) -> Iterator[str]:
    """Yield why figures are less reliable, where they are: the end of a headline."""
    faults = [fault for fault in report.health if fault.severity != "note"]
    for fault in faults:
        share = fault.evidence.get("delayed_share")
        if fault.name == BUSY_MACHINE and isinstance(share, float):
            what = "times and shares" if share >= _MIN_DISTORTING_SHARE else "times"
            yield f"{fault.title} for {format_share(share)} of the recording: {what} are inflated."

    # Without any device work it has been said that it is missing.
    said = {BUSY_MACHINE} if _has_device_work(report) else {BUSY_MACHINE, _LOST_EVENTS}
    others = [fault for fault in faults if fault.name not in said]
    if others:
        yield f"Figures are less reliable: {inline_title(others[0].title)}."


def _what_to_do(diagnosis: _Diagnosis, explained: Finding | None = None) -> list[str]:
    """Return the findings with the highest costs, or what is known without such a finding.

    Args:
        diagnosis: What limits the program.
        explained: The finding that the first sentence is about: its fix is what to do.
    """
    if explained is not None:
        return [_first_sentence(explained.fix)]
    report, window = diagnosis.report, diagnosis.window
    is_function = Cause.FUNCTION in diagnosis.causes
    function = main_function(window) if is_function else None
    # Where some steps are described apart, a mean over all of them describes none.
    is_in_total = window is not None and bool(window.left_out)
    costs = _highest_costs(report, function, is_in_total=is_in_total)
    if costs or is_function:
        return costs

    # What is missing may be the problem.
    if diagnosis.is_incomplete:
        missing = (fault.fix for fault in report.health if fault.name == _UNRECORDED_WORK)
        return [_first_sentence(next(missing, _RECORD_ALL))]

    if diagnosis.causes & _ON_CPU and spends_time_in_calls(window):
        return [_LARGER_BATCHES]
    sentence = _without_costs(diagnosis)
    source = report.source
    has_stacks = source.recorded_with.stacks or source.lines_from is not None
    is_unnamed = Cause.PYTHON in diagnosis.causes and not has_named_python(window)
    if is_unnamed and not has_stacks:
        how = "record with `profkit run` or `with_stack=True` to see its functions"
        sentence = f"{sentence.partition(';')[0].rstrip('.')}: {how}."
    return [sentence]


def _first_sentence(fix: str) -> str:
    first, _, _ = visible(fix).partition(". ")
    return f"{first.rstrip('.')}."


def _memory_fix(report: Report) -> list[str]:
    """Return what to do by a report on memory alone."""
    # The fix of the first finding, right below, is as long as the headline.
    if has_oom(report):
        return []
    if costs := _highest_costs(report):
        return costs
    return [_main_finding(report) or no_memory_findings(report)]


def _main_finding(report: Report) -> str:
    """Return the first finding that is more than a note; empty if there is none."""
    serious = next((finding for finding in report.findings if finding.severity != "note"), None)
    if serious is None:
        return ""
    return f"Main finding: {inline_title(serious.title)}{at_place(serious)}."


def _highest_costs(
    report: Report, function: FunctionSummary | None = None, *, is_in_total: bool = False
) -> list[str]:
    """Return the finding with the highest cost in time, and the one in memory.

    A note is named where it has the highest cost, unless that is a bound or a guess, or may be of
    steps that are described apart; if one is passed over so, the sentence says that notes are left
    out.

    Args:
        report: The report.
        function: A function that was named already: a finding on it is left out.
        is_in_total: Whether costs are given over all steps, and not per step.
    """
    costly = [
        finding
        for finding in report.findings
        if _is_costly(report, finding)
        and (function is None or function.location not in finding.locations)
    ]
    certain = [finding for finding in costly if _is_certain(finding, is_in_total=is_in_total)]
    in_time = max(certain or costly, key=lambda finding: finding.cost.ranked_ns, default=None)

    of_memory = sorted(report.findings, key=lambda finding: -(finding.cost.bytes or 0))
    of_memory = [finding for finding in of_memory if finding.cost.bytes]
    serious = [finding for finding in of_memory if finding.severity != "note"]
    in_bytes = next(iter(serious or (of_memory if in_time is None else ())), None)

    sentences = []
    if in_time is not None:
        longest_ns = max(finding.cost.ranked_ns for finding in costly)
        notes = " (excluding notes)" if in_time.cost.ranked_ns < longest_ns else ""
        sentences.append(
            f"Highest cost{notes}: {_summary_of(report, in_time, is_in_total=is_in_total)}."
        )
    if in_bytes is not None and in_bytes is not in_time:
        notes = " (excluding notes)" if in_bytes is not of_memory[0] else ""
        sentences.append(
            f"Highest memory cost{notes}: {_summary_of(report, in_bytes, is_in_total=is_in_total)}."
        )
    return sentences


def _is_certain(finding: Finding, *, is_in_total: bool) -> bool:
    """Return whether a finding is more than a note, or a note on a cost that every step has."""
    is_guess = finding.cost.basis == "upper-bound" or finding.confidence == "low"
    return finding.severity != "note" or not (is_guess or is_in_total)


def _is_costly(report: Report, finding: Finding) -> bool:
    share = cost_share(report, finding)
    return bool(finding.cost.ranked_ns) and (share is None or share >= _MIN_FINDING_SHARE)


def _summary_of(report: Report, finding: Finding, *, is_in_total: bool) -> str:
    of_all = ""
    if is_in_total and finding.cost.ns:
        finding = replace(finding, cost=replace(finding.cost, per_step_ns=None))
        of_all = " of all steps"
    cost = cost_text(report, finding)
    return f"{inline_title(finding.title)}{_places_of(finding)}, {cost}{of_all}"


def _places_of(finding: Finding) -> str:
    """Return `` at train.py:12 and 2 more lines``; empty where no source line is known."""
    # The name of an operator is no place: a program has hundreds of `aten::add_`.
    lines = [location for location in finding.locations if location.file]
    if not lines or finding.locations[0] != lines[0]:
        return ""
    # The function that a loader waits for is not another line with the same fault.
    n_more = 0 if "function_share" in finding.evidence else len(lines) - 1
    more = f" and {counted(n_more, 'more line')}" if n_more else ""
    return f"{at_place(finding)}{more}"


def _without_costs(diagnosis: _Diagnosis) -> str:
    """Return the sentence in place of the highest cost."""
    report = diagnosis.report
    unexplained = _find_unexplained(diagnosis)
    if unexplained:
        return with_skipped_checks(unexplained, report)
    has_later_steps = diagnosis.window is not None and diagnosis.window.follows_long_start
    if diagnosis.causes.intersection(_ONE_TIME) and not has_later_steps:
        return _WARM_UP
    if Cause.OPERATORS in diagnosis.causes and runs_short_operators(diagnosis.window):
        return _suggest_fewer_operators(report)
    if any(finding.cost.ns for finding in report.findings):
        breakdown = report.summary.breakdown
        whole = "step time" if breakdown and breakdown.per_step_ns is not None else "the recording"
        return f"No finding exceeds {_MIN_FINDING_SHARE:.0%} of {whole}."
    # What costs nothing where it was recorded is in the list alone.
    costly = [finding for finding in report.findings if not is_free(finding)]
    if costly:
        return _main_finding(report) or f"No problems found, but {counted(len(costly), 'note')}."
    return with_skipped_checks(NO_PROBLEMS, report)


def _suggest_fewer_operators(report: Report) -> str:
    """Return what takes less than many short operators; of torch's own, what the program can do."""
    module = find_recurrent_module(report)
    return _RECURRENT.format(module) if module else _FEWER_OPERATORS


def _find_unexplained(diagnosis: _Diagnosis) -> str:
    """Return what no finding explains, in a sentence; empty where nothing large is left."""
    limiters, candidates = diagnosis.limiters, diagnosis.candidates
    if any(limiter.cause in _FAULTY and limiter.share >= MAJORITY for limiter in limiters):
        return "No check explains most of this time."

    idle_shares = (candidate.share for candidate in candidates if candidate.cause is Cause.IDLE)
    is_idle = any(share >= _MIN_IDLE_SHARE for share in idle_shares)
    return "No check found what to change about the idle time." if is_idle else ""


def no_findings(report: Report) -> str:
    """Return the sentence in place of a list of findings that is empty."""
    return _find_unexplained(_diagnose(report)) or NO_PROBLEMS
