"""Where the host's time goes: lines and functions of the critical path, and of samples."""

from collections import Counter
from dataclasses import replace
from typing import Final

from profkit.model.critical_path import PathFunction, PathKindName, PathLine
from profkit.model.report import Report
from profkit.model.work_summary import FunctionSummary
from profkit.names import middle_cut, visible
from profkit.present.critical_path import NO_FUNCTION, main_name, main_share, main_word
from profkit.present.labels import MIN_SAMPLES, function_name, is_on_cpu, n_running
from profkit.present.limiters.candidates import MAJORITY
from profkit.present.limiters.window import MIN_SHARE, Window
from profkit.units import format_count, format_ns, format_share

PYTHON: Final[tuple[PathKindName, ...]] = ("python", "runtime")
"""Kinds of the critical path that are outside of operators."""
MAX_NAME: Final = 40
_MIN_LINES: Final = 1.5
"""A function whose lines take so many times as long as its main one is named instead of it."""
_MANY_OPERATORS: Final = 200
"""Operators of one line in a step: fewer are what a line of a model runs for each of its layers."""
_SHORT_OPERATOR_NS: Final = 20_000
"""To call an operator takes some microseconds, and to return to Python as long again."""
_CALL_NS: Final = 5_000
"""An operator that takes no longer has hardly computed anything: to call it takes as long."""
_SMALL_OPERATOR_NS: Final = 30_000
_BETWEEN_OPERATORS_NS: Final = 150_000
"""Python between two operators: modules, an optimizer, the start of a backward pass, recorded."""
_RECURRENT_MODULES: Final = {
    "aten::gru": "nn.GRU",
    "aten::lstm": "nn.LSTM",
    "aten::rnn_tanh": "nn.RNN",
    "aten::rnn_relu": "nn.RNN",
}
_MIN_FORWARD: Final = 0.2
"""A forward pass takes a third of a module's time in training, and all of it in inference."""
_MIN_SMALL_SHARE: Final = 0.7
"""It is 0.73 or more where a model of some kilobytes learns, and 0.04 or less in steps of 5 ms."""
_MIN_BETWEEN_SHARE: Final = 0.4
"""With less Python between them, operators take most of the time, and may well compute in it."""


def describe_main_line(window: Window, *kinds: PathKindName, share: float = 0.0) -> str:
    """Return ``: 57% at train.py:22, mostly aten::mm (51%)``, of the line with most of the path.

    Empty where neither a line nor a name is known.

    Args:
        window: The time that is described.
        kinds: What the line has to spend its time in.
        share: The share of the path that the sentence is about, if it is more than one line.
    """
    path = window.path
    lines = [line for line in path.lines if line.kind in kinds] if path else []
    if path is None or not lines or lines[0].share < MIN_SHARE:
        return ""

    line = lines[0]
    if line.kind == "operator" and line.location.file is None:
        sampled = _describe_sampled_operators(window.report)
        name = describe_name(line, share)
        # A name without a share takes all of its line, whose share only its place would tell.
        is_bare = name == main_short_name(line) and not sampled
        return _join_texts(sampled, f"{name} ({format_share(line.share)})" if is_bare else name)
    if line.kind == "operator" and path.functions:
        function = path.functions[0]
        if function.share >= _MIN_LINES * line.share:
            return _describe_function(function, window)

    short = _describe_short_operators(line, window)
    place = f"{format_share(line.share)}{describe_place(line)}{short}" if line.location.file else ""
    return _join_texts(place, describe_name(line))


def _join_texts(*texts: str) -> str:
    """Return the texts that are not empty, after a colon; empty if none is left."""
    known = [text for text in texts if text]
    return f": {', '.join(known)}" if known else ""


def describe_place(line: PathLine) -> str:
    """Return `` at train.py:22``; empty where no source line is known."""
    return f" at {visible(line.location.place)}" if line.location.file else ""


def describe_name(line: PathLine, whole_share: float = 0.0) -> str:
    """Return ``mostly aten::mm (51%)``; empty where no name is known.

    Args:
        line: The line of the path whose main name it is.
        whole_share: The share of the path that the name is a part of, if that is not its line.
    """
    name, share = main_short_name(line), main_share(line)
    if not name or name == NO_FUNCTION:
        return ""
    # Most of a line may be little of what a sentence is about.
    is_most = line.main_share >= MAJORITY * max(line.share, whole_share)
    word = ("mostly " if is_most else "the longest ") if main_word(line) else ""
    return f"{word}{name}{f' ({share})' if share else ''}"


def main_short_name(line: PathLine) -> str:
    """Return the name that takes most of a line's time, cut in the middle where it is long."""
    return middle_cut(main_name(line), MAX_NAME)


def _describe_function(function: PathFunction, window: Window) -> str:
    """Return ``: 74% in forward (net.py:24), most at line 28 (19%)``."""
    location = function.location
    place = replace(location, line=function.first_line).place
    name = f"{visible(location.function or '')} ({visible(place)})"
    # Operators of a backward pass belong to the line whose operators they are the gradients of.
    forward = window.find_part("operators")
    has_backward = window.find_part("backward") is not None
    if has_backward and forward is not None and function.share > forward.share:
        name += " and its backward pass"
    short = _describe_short_operators(function, window)
    most = f"most at line {location.line} ({format_share(function.line_share)})"
    return f": {format_share(function.share)} in {name}{short}, {most}"


# --------------------------------------------------------------------------- many, short operators


def runs_short_operators(window: Window | None) -> bool:
    """Return whether the costliest line or function runs very many operators of a few µs."""
    path = window.path if window is not None else None
    if window is None or path is None:
        return False
    # Other programs lengthen each operator by the time in which its thread has no core.
    cpu = window.report.source.cpu
    running_share = 1.0 if cpu is None else 1 - cpu.delayed_share
    lines = [line for line in path.lines if line.kind == "operator"]
    costliest: list[PathLine | PathFunction] = [*lines[:1], *path.functions[:1]]
    return any(
        place.share >= MIN_SHARE
        and running_share * place.ns <= _CALL_NS * place.n_events
        and bool(_describe_short_operators(place, window))
        for place in costliest
    )


def spends_time_in_calls(window: Window | None) -> bool:
    """Return whether a CPU's steps consist of small operators and of the Python between them.

    Calls are then what they take, so that tensors of twice the size would hardly take longer.
    """
    if window is None or window.path is None or not is_on_cpu(window.report):
        return False

    longest_ns = {"operator": _SMALL_OPERATOR_NS, "python": _BETWEEN_OPERATORS_NS}
    small_ns = Counter[PathKindName]()
    for segment in (segment for step in window.path.steps for segment in step.segments):
        if segment.ns <= longest_ns.get(segment.kind, -1):
            small_ns[segment.kind] += segment.ns

    total_ns = window.path.total_ns
    is_small = small_ns.total() >= _MIN_SMALL_SHARE * total_ns > 0
    return is_small and small_ns["python"] >= _MIN_BETWEEN_SHARE * total_ns


def find_recurrent_module(report: Report) -> str:
    """Return the recurrent module of torch that runs most operators, such as ``nn.GRU``, or empty.

    On a CPU torch runs these modules as operators for each element of the sequence, in C++: the
    program can change neither their number nor their size.

    Source: ``aten/src/ATen/native/RNN.cpp`` (``FullLayer``).
    """
    ops = report.summary.top_ops
    all_ns = sum(op.self_ns for op in ops)
    return next(
        (
            module
            for op in ops
            if (module := _RECURRENT_MODULES.get(op.name)) and op.total_ns >= _MIN_FORWARD * all_ns
        ),
        "",
    )


def _describe_short_operators(line: PathLine | PathFunction, window: Window) -> str:
    """Return `` in 1,536 operators of 1.4 µs``, where a loop runs very many short ones; else empty.

    What they compute takes less than to call them: the number is what the program can change.
    """
    path = window.path
    is_of_operators = isinstance(line, PathFunction) or line.kind == "operator"
    if path is None or not is_of_operators or not path.n_steps:
        return ""
    n_per_step, mean_ns = line.n_events / path.n_steps, line.ns / max(1, line.n_events)
    if n_per_step < _MANY_OPERATORS or mean_ns > _SHORT_OPERATOR_NS:
        return ""
    return f" in {format_count(round(n_per_step))} operators of {format_ns(mean_ns)}"


# ------------------------------------------------------------------------------------------ samples


def main_function(window: Window | None) -> FunctionSummary | None:
    """Return the sampled function that the critical path of the steps spends most time in.

    None where something else takes longer, or no samples tell.
    """
    main = find_main_python(window) if window is not None else None
    return None if main is None else main[1]


def find_main_python(window: Window) -> tuple[PathLine, FunctionSummary] | None:
    """Return the first line of the critical path if it is Python, and its sampled function."""
    sampled, path = window.report.summary.sampled, window.path
    if sampled is None or not sampled.n_steps or path is None or window.report.ranks:
        return None
    line = next(iter(path.lines), None)
    if line is None or line.kind != "python" or line.share < MIN_SHARE:
        return None
    functions = (function for function in sampled.functions if function.location == line.location)
    function = next(functions, None)
    return None if function is None else (line, function)


def has_named_python(window: Window | None) -> bool:
    """Return whether a function or a line is known of the Python time outside of operators."""
    if window is None:
        return False
    return window.report.summary.sampled is not None or bool(describe_main_line(window, *PYTHON))


def describe_sampled_function(report: Report) -> str:
    """Return ``tokenize at service.py:31 (62%)``; empty where no function stands out.

    Where no stacks were recorded, those that were sampled tell more than the names of regions.
    """
    sampled = report.summary.sampled
    # A few samples are chance.
    if sampled is None or n_running(sampled) < MIN_SAMPLES:
        return ""
    function = next((function for function in sampled.functions if function.location.file), None)
    if function is None or function.share < MIN_SHARE:
        return ""
    place = visible(function.location.place)
    return f"{function_name(function)} at {place} ({format_share(function.share)})"


def _describe_sampled_operators(report: Report) -> str:
    """Return ``37% in alpha_bar at train.py:16, by samples``; empty where no function stands out.

    Where no operator has a source line, the samples of the steps know where they were, and without
    steps those of the whole run.
    """
    sampled = report.summary.sampled
    if sampled is None:
        return ""
    of_run = sampled.functions if not sampled.n_steps and n_running(sampled) >= MIN_SAMPLES else ()
    function = next(iter(sampled.with_operators or of_run), None)
    if function is None or function.share < MIN_SHARE:
        return ""
    name, place = function_name(function), visible(function.location.place)
    return f"{format_share(function.share)} in {name} at {place}, by samples"
