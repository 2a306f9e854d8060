"""What limits a program without a device: what the host works on, and what it waits for."""

from collections.abc import Iterator
from typing import Final

from profkit.engine.families.sampled_python import runs_steps
from profkit.engine.families.sampled_texts import call_text, mostly_waits
from profkit.model.critical_path import PathLine
from profkit.model.step_summary import TimePart
from profkit.model.work_summary import FunctionSummary
from profkit.names import visible
from profkit.present.labels import is_on_cpu
from profkit.present.limiters.candidates import MAJORITY, Candidate, Cause
from profkit.present.limiters.lines import (
    PYTHON,
    describe_main_line,
    describe_sampled_function,
    find_main_python,
)
from profkit.present.limiters.loader import describe_loader_function
from profkit.present.limiters.start import find_cold_share
from profkit.present.limiters.window import MIN_SHARE, Window
from profkit.units import format_ns, format_share

_WORK: Final = ("operators", "backward", "optimizer")
_WAITS: Final = {
    "data": (Cause.DATA, "The program waits for data for"),
    "communication": (Cause.COMMUNICATION, "Collectives that nothing overlaps take"),
}
_MIN_CHILDREN_SHARE: Final = 0.1
_MIN_DIFFERENCE: Final = 0.01
"""A larger one is seen between two shares."""


def find_host_candidates(window: Window) -> Iterator[Candidate]:
    """Yield what the host works on, and what it waits for."""
    whole, main = window.describe(), find_main_python(window)
    function_share = 0.0
    if main is not None:
        line, function = main
        if _is_around_operators(window, function):
            yield Candidate(Cause.LIBRARY, line.share, _library_takes(function, line, whole))
        else:
            function_share = line.share
            yield Candidate(Cause.FUNCTION, line.share, _takes(function, line, whole))

    # Operators are the sum of a model, its backward pass and an optimizer, which a training step
    # has in any case. A function that takes longer than each of them is what can be changed.
    if function_share <= _find_largest_work(window):
        yield _describe_operators(window)

    for kind, (cause, text) in _WAITS.items():
        part = window.find_part(kind)
        if part is not None:
            where = describe_loader_function(window.report) if kind == "data" else ""
            sentence = f"{text} {format_share(part.share)} of {whole}{where}."
            yield Candidate(cause, part.share, sentence)

    python, waiting = window.find_part("python"), _find_waiting(window)
    if main is not None:
        return
    if waiting is not None:
        yield waiting
    elif python is not None:
        yield _describe_python(window, python)


def _find_largest_work(window: Window) -> float:
    """Return the largest share among operators, the backward pass and the optimizer."""
    parts = window.breakdown.parts
    return max((part.share for part in parts if part.kind in _WORK), default=0.0)


def _describe_operators(window: Window) -> Candidate:
    """Return that operators take the time, or the optimizer, if that is the largest part of it."""
    shares = {part.kind: part.share for part in window.breakdown.parts if part.kind in _WORK}
    optimizer = shares.pop("optimizer", 0.0)
    others, whole = sum(shares.values()), window.describe()
    if optimizer > max(shares.values(), default=0.0):
        takes = (
            f"takes {format_share(optimizer)} of {whole}, other operators {format_share(others)}"
        )
        return Candidate(Cause.OPERATORS, others + optimizer, f"The optimizer {takes}.")

    # The part of the optimizer has Python of its own, which its operators on the path leave out.
    # Calls of a runtime are apart from their operators there, so it tells for a CPU alone.
    parts = window.path.parts if window.path is not None and is_on_cpu(window.report) else ()
    on_path = next((part.share for part in parts if part.kind == "operator"), None)
    share = others + optimizer if on_path is None else on_path

    # Launches that load code are within operators, and have a sentence of their own.
    cold_share = find_cold_share(window)
    aside = ", cold start aside" if cold_share >= MIN_SHARE else ""
    share = max(0.0, share - cold_share) if aside else share
    most = describe_main_line(window, "operator", share=share)
    takes = f"Operators take {format_share(share)} of {whole}{aside}{most}."
    return Candidate(Cause.OPERATORS, share, takes)


def _describe_python(window: Window, python: TimePart) -> Candidate:
    """Return that Python takes the time, with the function or line that takes most of it."""
    sampled = "" if window.left_out else describe_sampled_function(window.report)
    most = f", most in {sampled}" if sampled else describe_main_line(window, *PYTHON)
    # The part of the optimizer has Python of its own, which the lines of the path include.
    lines = window.path.lines if window.path is not None else ()
    share = max(python.share, sum(line.share for line in lines if line.kind == "python"))
    takes = f"takes {format_share(share)} of {window.describe()}{most}"
    own = ", the optimizer's included," if share - python.share >= _MIN_DIFFERENCE else ""
    return Candidate(Cause.PYTHON, share, f"Python outside of operators{own} {takes}.")


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


def _is_around_operators(window: Window, function: FunctionSummary) -> bool:
    """Return whether a library's function is busy around the operators that it runs.

    Such as an optimizer's step, or a trainer's loop: that it takes most of the step is no news.
    """
    lines = window.path.lines if window.path is not None else ()
    place = function.location.file, function.location.line
    runs_operators = any(
        line.kind == "operator" and (line.location.file, line.location.line) == place
        for line in lines
    )
    is_of_steps = runs_steps(function.library, function.callee)
    return is_of_steps or (bool(function.library) and runs_operators)


def _find_waiting(window: Window) -> Candidate | None:
    """Return that the host mostly waited, for nothing that the recording shows; else None."""
    cpu = window.report.source.cpu
    if cpu is None or cpu.waiting_ns is None or window.breakdown.on_device or window.left_out:
        return None
    explained = sum(part.share for part in window.breakdown.parts if part.kind in _WAITS)
    share = cpu.waiting_ns / max(cpu.window_ns, 1) - explained
    if share < MAJORITY:
        return None

    others = " besides the waits listed below" if explained else ""
    sentence = (
        f"The recorded thread waited for {format_share(share)} of {window.describe()}{others}: for "
        "I/O, a lock, a timer or another process."
    )
    if cpu.children_ns is not None and cpu.children_ns >= _MIN_CHILDREN_SHARE * cpu.window_ns:
        sentence += (
            f" Its child processes used {format_ns(cpu.children_ns)} of processor time and are not "
            "recorded: use `profkit.trace` in them."
        )
    return Candidate(Cause.WAITING, share, sentence)
