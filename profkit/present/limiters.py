"""What limits a program: candidates for the first sentence of a report, and the choice.

Each source of a report (the device, the host, the critical path, samples) offers candidates: a
sentence on one cause, and the share of the time that it takes. The one with the largest share is
chosen.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import Enum, auto
from statistics import mean, median
from typing import Final

from profkit.dataclass import dataclass
from profkit.engine.families.sampled_python import runs_steps
from profkit.engine.families.sampled_texts import call_text, mostly_waits
from profkit.model.critical_path import PathFunction, PathKindName, PathLine
from profkit.model.report import Breakdown, FunctionSummary, Report, TimePart
from profkit.model.torch_names import DEVICE_OPERATOR, SYNCHRONIZE_BUILTIN
from profkit.names import middle_cut, visible
from profkit.present.critical_path import NO_FUNCTION, main_name, main_share, main_word
from profkit.present.labels import (
    MIN_SAMPLES,
    MIN_SKEW,
    device_noun,
    function_name,
    host_step_time,
    idle_explanation,
    n_running,
)
from profkit.units import format_count, format_ns, format_share

_IDLE: Final = "idle-"
_HOST_WORK: Final = ("operators", "backward", "optimizer")
_MAJORITY: Final = 0.5
_NEARLY_ALL: Final = 0.9
"""A part with this share of a whole is as good as the whole."""
_MIN_SHARE: Final = 0.1
"""A smaller part of the time is not in the headline."""
_MIN_UNRECORDED_SHARE: Final = 0.05
"""Less unrecorded work of a device is not in the headline."""
_MIN_CHILDREN_SHARE: Final = 0.1
_MAX_NAME: Final = 40
_PYTHON: Final[tuple[PathKindName, ...]] = ("python", "runtime")
"""Kinds of the critical path that are outside of operators."""
_ON_HOST: Final = ("operator", *_PYTHON)
_MIN_HOST_SHARE: Final = 0.3
"""A line with less of the critical path is not why the device waits."""
_MIN_LINES: Final = 1.5
"""A function whose lines take so many times as long as its main one is named instead of it."""
_MANY_OPERATORS: Final = 200
"""Operators of one line in a step: fewer are what a line of a model runs for each of its layers."""
_SHORT_OPERATOR_NS: Final = 20_000
"""To call an operator takes some microseconds, and to return to Python as long again."""
_CALL_NS: Final = 5_000
"""An operator that takes no longer has hardly computed anything: to call it takes as long."""
_UNKNOWN_EVENTS: Final = "unknown-events"
_GRAPH_CAPTURE: Final = "graph-capture"
_STARVED: Final = "starved-by-loader"
_CATEGORIES: Final = {
    "matmul": "matrix products",
    "convolution": "convolutions",
    "pointwise": "pointwise work",
    "normalization": "normalization",
    "reduction": "reductions",
    "embedding": "embeddings",
    "optimizer": "the optimizer",
    "copy": "copies",
    "communication": "collectives",
}


class Cause(Enum):
    """What can take most of a program's time."""

    DEVICE = auto()
    """A device works, which is what it is there for."""
    IDLE = auto()
    """The device waits for the host."""
    UNRECORDED = auto()
    """The device works on something that is not in the recording."""
    OPERATORS = auto()
    FUNCTION = auto()
    """The host is in a known function outside of operators."""
    LIBRARY = auto()
    """The host is in a library's Python, around the operators that it runs."""
    PYTHON = auto()
    """The host is in Python outside of operators, and no function is known."""
    DATA = auto()
    COMMUNICATION = auto()
    COPIES = auto()
    WAITING = auto()
    """The host waits for something that the recording does not show."""
    COLD_START = auto()
    CAPTURE = auto()
    """The device waits while graphs are captured, which happens once."""


_CERTAINTY: Final = {
    Cause.FUNCTION: 0.95, Cause.LIBRARY: 0.9, Cause.PYTHON: 0.9, Cause.OPERATORS: 0.9
}  # fmt: skip
"""A function was sampled, and is known with an error. Python and operators name no cause by
themselves: another cause that takes nearly as much says more."""


_UNSPECIFIC: Final = (Cause.IDLE, Cause.OPERATORS, Cause.LIBRARY, Cause.PYTHON)
"""Causes that a cold start is a part of."""


@dataclass(frozen=True)
class Candidate:
    """A sentence that may begin the headline.

    Attributes:
        cause: What takes the time.
        share: The share of the steps, or of the recording, that it takes.
        sentence: What a reader sees.
    """

    cause: Cause
    share: float
    sentence: str

    def in_longer_steps(self, share: float) -> "Candidate":
        """Return this with its share of steps of which the recorded ones show that share alone."""
        return replace(self, share=self.share * share)

    @property
    def score(self) -> float:
        """The share, less where the cause is less certain or says less."""
        return self.share * _CERTAINTY.get(self.cause, 1.0)


def choose(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the candidate with the largest share of the time; none without candidates.

    Where that is work that was not recorded, the next one follows: it is what a reader can change.
    A cold start that takes most of the time precedes a cause of which it is a part.
    """
    ranked = sorted(candidates, key=lambda candidate: -candidate.score)
    is_incomplete = bool(ranked) and ranked[0].cause is Cause.UNRECORDED
    limiters = ranked[: 2 if is_incomplete else 1]
    if not limiters or limiters[0].cause not in _UNSPECIFIC:
        return limiters

    cold_starts = [candidate for candidate in ranked if candidate.cause is Cause.COLD_START]
    return [*(cold for cold in cold_starts if cold.share >= _MAJORITY), *limiters]


def find_candidates(report: Report) -> Iterator[Candidate]:
    """Yield a sentence for each cause that takes a part of the time."""
    breakdown = report.summary.breakdown
    if breakdown is None or not breakdown.total_ns:
        return
    hidden = _find_hidden_waits(report)
    recorded = _device_candidates if breakdown.on_device else _host_candidates
    for candidate in recorded(report, breakdown):
        yield candidate if hidden is None else candidate.in_longer_steps(1 - hidden.share)
    if hidden is not None:
        yield hidden
    yield from _cold_start(report)


def _find_hidden_waits(report: Report) -> Candidate | None:
    """Return that the program waits for data in the steps around the recorded ones; else None."""
    for finding in report.findings:
        share = finding.evidence.get("sampled_wait_share")
        step_ns = finding.evidence.get("sampled_step_ns")
        if finding.name == _STARVED and isinstance(share, float) and isinstance(step_ns, int):
            sentence = (
                f"The program waits for data for {format_share(share)} of each "
                f"{format_ns(step_ns)} step{_find_loader_function(report)}; the recorded steps "
                "found theirs ready."
            )
            return Candidate(Cause.DATA, share, sentence)
    return None


# ------------------------------------------------------------------------------------ with a device


def _device_candidates(report: Report, breakdown: Breakdown) -> Iterator[Candidate]:
    """Yield what the device works on, and what it waits for."""
    lost = _part(breakdown, "unrecorded")
    if lost is not None and lost.share >= _MIN_UNRECORDED_SHARE:
        yield Candidate(Cause.UNRECORDED, lost.share, _unrecorded_work(report, lost))

    wait = _find_main_wait(report, breakdown)
    if wait is not None:
        yield _idle_candidate(report, breakdown, wait)
    yield from _busy_candidates(report, breakdown, wait)


@dataclass(frozen=True)
class _DeviceWait:
    """What a device waits for most.

    Attributes:
        kind: The kind of the idle time.
        share: The share of the steps, or of the recording, in which it waits for this.
        reason: Why, as ``because it waits for data``.
    """

    cause: Cause
    kind: str
    share: float
    reason: str


def _idle_shares(breakdown: Breakdown) -> dict[str, float]:
    """Return the share of the time in which the device is idle, by kind of idle time."""
    return {part.kind: part.share for part in breakdown.parts if part.kind.startswith(_IDLE)}


def _find_main_wait(report: Report, breakdown: Breakdown) -> _DeviceWait | None:
    """Find what the device waits for most; None if it is never idle."""
    idle = _idle_shares(breakdown)
    kind = max(idle, key=idle.__getitem__, default=None)
    if kind is None:
        return None

    # While graphs are captured nothing runs, whatever the host does.
    captured_share = _captured_share(report, breakdown)
    if captured_share >= _MAJORITY * sum(idle.values()):
        return _DeviceWait(Cause.CAPTURE, kind, captured_share, _CAPTURED)
    if kind in _IDLE_REASONS:
        return _DeviceWait(Cause.IDLE, kind, idle[kind], _IDLE_REASONS[kind])
    occupation = _find_host_occupation(report, kind)
    if occupation is not None:
        return _DeviceWait(Cause.IDLE, kind, idle[kind], f"because the host {occupation}")

    # A launch that comes late delays its kernel until it has also reached the device.
    share = idle[kind] + idle.get("idle-launch", 0.0)
    n_kernels = [step.n_kernels for step in report.summary.steps if step.n_kernels]
    number = f"{format_count(round(mean(n_kernels)))} " if n_kernels else ""
    reason = f"because the CPU launches its {number}kernels too slowly"
    return _DeviceWait(Cause.IDLE, kind, share, reason)


def _idle_candidate(report: Report, breakdown: Breakdown, wait: _DeviceWait) -> Candidate:
    """Return how long the device is idle, and why most of that time."""
    idle_share = sum(_idle_shares(breakdown).values())
    is_all = wait.share >= _NEARLY_ALL * idle_share
    of_all = "" if is_all else f"{format_share(wait.share)} "
    idle_of = f"{_devices(report)} idle {format_share(idle_share)} of {_whole(report, breakdown)}"
    return Candidate(wait.cause, idle_share, f"{idle_of}, {of_all}{wait.reason}.")


def _busy_candidates(
    report: Report, breakdown: Breakdown, wait: _DeviceWait | None
) -> Iterator[Candidate]:
    """Yield how long the device is busy and with what, if it is, and what it waits for besides."""
    work = [part for part in breakdown.parts if part.kind in ("compute", *_DEVICE_TEXTS)]
    longest = max(work, key=lambda part: part.share, default=None)
    if longest is None:
        return

    cause, text = _DEVICE_TEXTS.get(longest.kind, (Cause.DEVICE, ""))
    main_work = f", mainly with {text} ({format_share(longest.share)})"
    kinds = main_work if text else _main_category(report)

    # A short wait is no part of the sentence.
    waits = ""
    if wait is not None and wait.share >= _MIN_SHARE:
        share = format_share(wait.share)
        unknown = f"is idle {share}: {idle_explanation(wait.kind)}"
        known = _IDLE_WAITS.get(wait.kind)
        has_comma = kinds or breakdown.per_step_ns is None
        waits = f"{',' if has_comma else ''} and {f'waits {share} {known}' if known else unknown}"

    busy_share = longest.share if breakdown.busy_share is None else breakdown.busy_share
    busy = f"{_devices(report)} busy {format_share(busy_share)} of {_whole(report, breakdown)}"
    yield Candidate(cause, busy_share, f"{busy}{kinds}{waits}.")


_DEVICE_TEXTS: Final = {
    "communication": (Cause.COMMUNICATION, "collectives that nothing overlaps"),
    "copy": (Cause.COPIES, "copies and fills that nothing overlaps"),
}
_IDLE_WAITS: Final = {
    "idle-data": "for data",
    "idle-host": "for launches",
    "idle-allocator": "for memory allocation",
}
_CAPTURED: Final = "because a CUDA graph is being captured, which runs nothing"
_IDLE_REASONS: Final = {
    "idle-sync": "because the host waits for its results before it launches more",
    "idle-data": "because it waits for data",
    "idle-overhead": "because of the profiler itself",
    "idle-launch": "from launches to the starts of their kernels",
    "idle-device": "between kernels that are launched already",
    "idle-unknown": "for a cause that the recording does not show",
}


def _captured_share(report: Report, breakdown: Breakdown) -> float:
    """Return the share of the time in which a device is idle because graphs are captured."""
    fault = next((fault for fault in report.health if fault.name == _GRAPH_CAPTURE), None)
    idle_ns = None if fault is None else fault.evidence.get("idle_in_steps_ns")
    return idle_ns / breakdown.total_ns if isinstance(idle_ns, int) else 0.0


def _devices(report: Report) -> str:
    """Return ``The GPU is``, or of several what is true of the busiest one."""
    several = len(report.summary.devices) > 1
    return f"At least one {device_noun(report)} is" if several else f"The {device_noun(report)} is"


def _find_host_occupation(report: Report, kind: str) -> str | None:
    """Return what the host does while the device waits for launches or allocations.

    Args:
        kind: The kind of the idle time.

    Returns:
        As ``runs json.dumps(), called at train.py:8``; None if it is only known to launch slowly.
    """
    function = main_function(report)
    if function is not None:
        return f"runs {visible(call_text(function.callee, function.location))}"

    # What takes most of the host's time is the reason, and not the number of launches.
    path = report.summary.critical_path
    line = next((line for line in path.lines if line.kind in _ON_HOST), None) if path else None
    if line is not None and line.kind == "runtime" and line.main_share >= _MIN_HOST_SHARE:
        share = f" ({main_share(line)})" if main_share(line) else f" ({format_share(line.share)})"
        return f"is in `{middle_cut(main_name(line), _MAX_NAME)}`{_place(line)}{share}"
    if line is not None and line.kind == "python" and line.share >= _MIN_HOST_SHARE:
        if SYNCHRONIZE_BUILTIN.search(line.main_name) and line.main_share >= _MIN_HOST_SHARE:
            return f"waits for another thread of Python{_place(line)}"
        names = [text for text in (_place(line).lstrip(), _named(line)) if text]
        if names:
            return f"runs Python {', '.join(names)}"

    return "waits for memory allocation" if kind == "idle-allocator" else None


def _main_category(report: Report) -> str:
    """Return ``, mostly with matrix products``; empty where the categories are not known."""
    categories = [
        category for category in report.summary.categories if category.kind in _CATEGORIES
    ]
    main = max(categories, key=lambda category: category.share, default=None)
    if main is None or main.share < _MIN_SHARE:
        return ""
    name, share = _CATEGORIES[main.kind], format_share(main.share)
    if main.share >= _NEARLY_ALL:
        return f", nearly all with {name}"
    word = "mostly" if main.share >= _MAJORITY else "mainly"
    return f", {word} with {name} ({share} of kernel time)"


# --------------------------------------------------------------------------------- without a device


def _host_candidates(report: Report, breakdown: Breakdown) -> Iterator[Candidate]:
    """Yield what the host works on, and what it waits for."""
    whole, main = _whole(report, breakdown), _main_python(report)
    if main is not None:
        line, function = main
        if _is_around_operators(report, function):
            yield Candidate(Cause.LIBRARY, line.share, _library_takes(function, line, whole))
        else:
            yield Candidate(Cause.FUNCTION, line.share, _takes(function, line, whole))

    work = sum(part.share for part in breakdown.parts if part.kind in _HOST_WORK)
    most = _main_line(report, "operator")
    sentence = f"Operators take {format_share(work)} of {whole}{most}."
    yield Candidate(Cause.OPERATORS, work, sentence)

    for kind, (cause, text) in _HOST_TEXTS.items():
        part = _part(breakdown, kind)
        if part is not None:
            where = _find_loader_function(report) if kind == "data" else ""
            sentence = f"{text} {format_share(part.share)} of {whole}{where}."
            yield Candidate(cause, part.share, sentence)

    python, waiting = _part(breakdown, "python"), _waiting(report, breakdown)
    if main is not None:
        return
    if waiting is not None:
        yield waiting
    elif python is not None:
        yield _python_candidate(report, python, whole)


def _python_candidate(report: Report, python: TimePart, whole: str) -> Candidate:
    """Return that Python takes the time, with the function or line that takes most of it."""
    sampled = _sampled_function(report)
    most = f", most in {sampled}" if sampled else _main_line(report, *_PYTHON)
    # The part of the optimizer has Python of its own, which the lines of the path include.
    path = report.summary.critical_path
    lines = path.lines if path is not None else ()
    share = max(python.share, sum(line.share for line in lines if line.kind in _PYTHON))
    sentence = f"Python outside of operators takes {format_share(share)} of {whole}{most}."
    return Candidate(Cause.PYTHON, share, sentence)


_HOST_TEXTS: Final = {
    "data": (Cause.DATA, "The program waits for data for"),
    "communication": (Cause.COMMUNICATION, "Collectives that nothing overlaps take"),
}


def is_on_cpu(report: Report, breakdown: Breakdown) -> bool:
    """Return whether all work is known to be on the CPU, and not only all recorded work."""
    # Events of unknown kinds may be work of a device.
    has_unknown = any(fault.name == _UNKNOWN_EVENTS for fault in report.health)
    has_operators = any(DEVICE_OPERATOR.match(op.name) for op in report.summary.top_ops)
    return not (breakdown.on_device or report.source.devices or has_unknown or has_operators)


def _main_line(report: Report, *kinds: PathKindName) -> str:
    """Return ``: 57% at train.py:22, mostly aten::mm (51%)``, of the line with most of the path.

    Empty where neither a line nor a name is known.

    Args:
        kinds: What the line has to spend its time in.
    """
    path = report.summary.critical_path
    lines = [line for line in path.lines if line.kind in kinds] if path else []
    if not lines or lines[0].share < _MIN_SHARE:
        return ""
    line = lines[0]
    if line.kind == "operator" and line.location.file is None:
        texts = [text for text in (_sampled_with_operators(report), _named(line)) if text]
        return f": {', '.join(texts)}" if texts else ""
    if path is not None and line.kind == "operator" and path.functions:
        function = path.functions[0]
        if function.share >= _MIN_LINES * line.share:
            return _function_with_lines(function, report)
    short = _describe_short_operators(line, report)
    texts = [f"{format_share(line.share)}{_place(line)}{short}"] if line.location.file else []
    texts += [named] if (named := _named(line)) else []
    return f": {', '.join(texts)}" if texts else ""


def _sampled_with_operators(report: Report) -> str:
    """Return ``37% in alpha_bar at train.py:16, by samples``; empty where no function stands out.

    Where no operator has a source line, the samples of the steps know where they were.
    """
    sampled = report.summary.sampled
    function = next(iter(sampled.with_operators), None) if sampled is not None else None
    if function is None or function.share < _MIN_SHARE:
        return ""
    name, place = function_name(function), visible(function.location.place)
    return f"{format_share(function.share)} in {name} at {place}, by samples"


def runs_short_operators(report: Report) -> bool:
    """Return whether the costliest line or function runs very many operators of a few µs."""
    path = report.summary.critical_path
    if path is None:
        return False
    lines = [line for line in path.lines if line.kind == "operator"]
    costliest: list[PathLine | PathFunction] = [*lines[:1], *path.functions[:1]]
    return any(
        each.share >= _MIN_SHARE
        and each.ns <= _CALL_NS * each.n_events
        and bool(_describe_short_operators(each, report))
        for each in costliest
    )


def _function_with_lines(function: PathFunction, report: Report) -> str:
    """Return ``: 74% in forward (net.py:24), most at line 28 (19%)``."""
    location = function.location
    place = replace(location, line=function.first_line).place
    name = f"{visible(location.function or '')} ({visible(place)})"
    short = _describe_short_operators(function, report)
    most = f"most at line {location.line} ({format_share(function.line_share)})"
    return f": {format_share(function.share)} in {name}{short}, {most}"


def _describe_short_operators(line: PathLine | PathFunction, report: Report) -> str:
    """Return `` in 1,536 operators of 1.4 µs``, where a loop runs very many short ones; else empty.

    What they compute takes less than to call them: the number is what the program can change.
    """
    path = report.summary.critical_path
    is_of_operators = isinstance(line, PathFunction) or line.kind == "operator"
    if path is None or not is_of_operators or not path.n_steps:
        return ""
    n_per_step, mean_ns = line.n_events / path.n_steps, line.ns / max(1, line.n_events)
    if n_per_step < _MANY_OPERATORS or mean_ns > _SHORT_OPERATOR_NS:
        return ""
    return f" in {format_count(round(n_per_step))} operators of {format_ns(mean_ns)}"


def _named(line: PathLine) -> str:
    """Return ``mostly aten::mm (51%)``; empty where no name is known."""
    name, share = middle_cut(main_name(line), _MAX_NAME), main_share(line)
    if not name or name == NO_FUNCTION:
        return ""
    word = {"mostly": "mostly ", "longest": "the longest "}.get(main_word(line), "")
    return f"{word}{name}{f' ({share})' if share else ''}"


def _takes(function: FunctionSummary, line: PathLine, whole: str) -> str:
    """Return ``gc.collect(), called at train.py:18 in main, takes 87% of each 612 ms step.``."""
    call = visible(call_text(function.callee, function.location))
    what = f"{call}, takes" if function.callee else f"{call} takes"
    waits = ", in which it waits" if mostly_waits(function) else ""
    return f"{what} {format_share(line.share)} of {whole}{waits}."


def _library_takes(function: FunctionSummary, line: PathLine, whole: str) -> str:
    """Return ``Python of fastai, in fit(), called at train.py:9, takes 64% of each 9 ms step.``."""
    call = visible(call_text(function.callee, function.location))
    share = format_share(line.share)
    return f"Python of {visible(function.library)}, in {call}, takes {share} of {whole}."


def _is_around_operators(report: Report, function: FunctionSummary) -> bool:
    """Return whether a library's function is busy around the operators that it runs.

    Such as an optimizer's step, or a trainer's loop: that it takes most of the step is no news.
    """
    path = report.summary.critical_path
    lines = path.lines if path is not None else ()
    place = function.location.file, function.location.line
    runs_operators = any(
        line.kind == "operator" and (line.location.file, line.location.line) == place
        for line in lines
    )
    is_of_steps = runs_steps(function.library, function.callee)
    return is_of_steps or (bool(function.library) and runs_operators)


def main_function(report: Report) -> FunctionSummary | None:
    """Return the sampled function that the critical path of the steps spends most time in.

    None where something else takes longer, or no samples tell.
    """
    main = _main_python(report)
    return None if main is None else main[1]


def _main_python(report: Report) -> tuple[PathLine, FunctionSummary] | None:
    """Return the first line of the critical path if it is Python, and its sampled function."""
    sampled, path = report.summary.sampled, report.summary.critical_path
    if sampled is None or not sampled.n_steps or path is None or report.ranks:
        return None
    line = next(iter(path.lines), None)
    if line is None or line.kind != "python" or line.share < _MIN_SHARE:
        return None
    functions = (function for function in sampled.functions if function.location == line.location)
    function = next(functions, None)
    return None if function is None else (line, function)


def has_named_python(report: Report) -> bool:
    """Return whether a function or a line is known of the Python time outside of operators."""
    return bool(_main_line(report, *_PYTHON)) or report.summary.sampled is not None


def _find_loader_function(report: Report) -> str:
    """Return ``, mostly in augment at data.py:31``, where the loader takes its time; else empty."""
    for finding in report.findings:
        share = finding.evidence.get("function_share") if finding.name == _STARVED else None
        if isinstance(share, float) and share >= _MAJORITY:
            place = finding.locations[-1]
            function = f"in {visible(place.function)} " if place.function else ""
            return f", mostly {function}at {visible(place.place)}"
    return ""


def _sampled_function(report: Report) -> str:
    """Return ``tokenize at service.py:31 (62%)``; empty where no function stands out.

    Where no stacks were recorded, those that were sampled tell more than the names of regions.
    """
    sampled = report.summary.sampled
    if sampled is None or n_running(sampled) < MIN_SAMPLES:
        return ""
    first = next((function for function in sampled.functions if function.location.file), None)
    if first is None or first.share < _MIN_SHARE:
        return ""
    place = visible(first.location.place)
    return f"{function_name(first)} at {place} ({format_share(first.share)})"


def _waiting(report: Report, breakdown: Breakdown) -> Candidate | None:
    """Return that the host mostly waited, for nothing that the recording shows; else None."""
    cpu = report.source.cpu
    if cpu is None or cpu.waiting_ns is None or breakdown.on_device:
        return None
    explained = sum(part.share for part in breakdown.parts if part.kind in _HOST_TEXTS)
    share = cpu.waiting_ns / max(cpu.window_ns, 1) - explained
    if share < _MAJORITY:
        return None

    others = " besides the waits listed below" if explained else ""
    sentence = (
        f"The recorded thread waited for {format_share(share)} of {_whole(report, breakdown)}"
        f"{others}: for I/O, a lock, a timer or another process."
    )
    if cpu.children_ns is not None and cpu.children_ns >= _MIN_CHILDREN_SHARE * cpu.window_ns:
        sentence += (
            f" Its child processes used {format_ns(cpu.children_ns)} of processor time and are not "
            "recorded: use `profkit.trace` in them."
        )
    return Candidate(Cause.WAITING, share, sentence)


# --------------------------------------------------------------------------------- in each of these


def _whole(report: Report, breakdown: Breakdown) -> str:
    """Return what a share is of: ``each 174 ms step``, or what was recorded without steps."""
    of_rank = f" of rank {report.source.rank}" if report.ranks else ""
    on_cpu = " on the CPU" if is_on_cpu(report, breakdown) else ""
    if breakdown.per_step_ns is not None:
        step = f"each {format_ns(breakdown.per_step_ns)} step{_usual_step(report)}"
        on_host = host_step_time(report)
        ahead = f" ({on_host}, which runs ahead)" if on_host else ""
        return f"{step}{of_rank}{on_cpu}{ahead}"

    length = format_ns(breakdown.total_ns)
    no_steps = "no complete step" if report.summary.n_incomplete_steps else "no steps"
    if breakdown.on_device:
        return f"the {length} from first to last device work (the recording has {no_steps})"
    return f"the recording{of_rank} of {length}{on_cpu}, which has {no_steps}"


def _usual_step(report: Report) -> str:
    """Return the median step time where a few long steps dominate the mean; else empty."""
    lengths = [step.time_ns for step in report.summary.steps] or [0]
    usual = median(lengths)
    return f" (median {format_ns(usual)})" if mean(lengths) > MIN_SKEW * usual else ""


def _part(breakdown: Breakdown, kind: str) -> TimePart | None:
    return next((part for part in breakdown.parts if part.kind == kind), None)


def _place(line: PathLine) -> str:
    return f" at {visible(line.location.place)}" if line.location.file else ""


def _cold_start(report: Report) -> Iterator[Candidate]:
    """Yield that launches load code and libraries, which they do once."""
    path = report.summary.critical_path
    if path is None or report.ranks or not path.total_ns:
        return
    share = path.cold_start_ns / path.total_ns
    if share >= _MIN_SHARE:
        of_all = " of all steps" if path.per_step_ns is not None else " of the recording"
        cold = f"Cold start takes {format_ns(path.cold_start_ns)} ({format_share(share)}{of_all})"
        sentence = f"{cold}: launches that first load code and libraries."
        yield Candidate(Cause.COLD_START, share, sentence)


def _unrecorded_work(report: Report, lost: TimePart) -> str:
    """Return the sentence on device work that is not in the recording."""
    per_step = "" if lost.per_step_ns is None else " per step"
    return (
        f"The trace is incomplete: the {device_noun(report)} worked for "
        f"{format_ns(lost.mean_ns)}{per_step} ({format_share(lost.share)}) on something that was "
        "not recorded."
    )
