"""What is wrong with a watched run, compared with the bare one."""

import signal
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from tests.chaos.process import Ended, Sent
from tests.chaos.table import Ending, Program

MAX_END_S: Final = 7.0
"""A program that SIGTERM ends has this long: 5 s for its report, and what a busy machine takes."""
_CRASHES: Final = (
    signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGKILL
)  # fmt: skip
_OWN_FRAMES: Final = "/profkit/capture/"


class Failure(Enum):
    """A kind of failure, in the words of the table's columns."""

    HANG = "hang"
    CRASH = "crash"
    OUTPUT = "output"
    EXIT = "exit"
    LATE = "late"
    NO_REPORT = "no report"
    NO_STEP = "no step"
    UNSAFE = "unsafe"
    TRACEBACK = "traceback"


def find_failures(
    program: Program,
    bare: Ended,
    watched: Ended,
    report: Mapping[str, Any] | None,
    violations: str,
    *,
    is_watched: bool = True,
) -> tuple[Failure, ...]:
    """Return all that is wrong with a run.

    Args:
        program: What must be true of it.
        bare: A run without profkit and without signals.
        watched: The run.
        report: Its JSON report, or None.
        violations: What the checker of safe points wrote.
        is_watched: Whether it ran under ``profkit run``; else a report is not expected.
    """
    failures = [Failure.UNSAFE] if violations else []
    if watched.is_hung:
        return (Failure.HANG, *failures)

    deadly = find_deadly(watched)
    if deadly is not None:
        return (*_find_bad_end(program, bare, watched, deadly), *failures)

    if watched.code != bare.code:
        is_crash = -watched.code in _CRASHES
        failures.append(Failure.CRASH if is_crash else Failure.EXIT)
    if watched.out != bare.out:
        failures.append(Failure.OUTPUT)
    if is_watched:
        failures += _find_bad_report(program, watched, report)
    return tuple(failures)


def find_deadly(watched: Ended) -> Sent | None:
    """Return the first signal of a run that asks it to end."""
    deadly = (sent for sent in watched.sent if sent.signum in (signal.SIGTERM, signal.SIGINT))
    return next(deadly, None)


def _find_bad_end(program: Program, bare: Ended, watched: Ended, deadly: Sent) -> list[Failure]:
    """Return what is wrong with a run that a signal asked to end."""
    is_term = deadly.signum == signal.SIGTERM
    ending = program.on_term if is_term else program.on_int
    assert ending is not None, "the signal is not for this program"

    # The signal may find the program at its end. An interrupt may be raised in a finalizer, which
    # Python reports and ignores, in a bare program too. While Python itself ends, which takes half
    # a second with torch, no handler of the program is left, and a bare program dies of any signal.
    is_complete = (watched.code, watched.out) == (bare.code, bare.out)
    was_over = deadly.n_printed >= len(bare.out.encode())
    was_ignored = not is_term and "Exception ignored" in watched.err
    if is_complete and (was_over or was_ignored):
        return []
    ended_python = ending.code != watched.code == -deadly.signum
    if was_over and ended_python and watched.out == bare.out:
        return []

    failures = []
    if watched.code != ending.code:
        failures.append(Failure.CRASH if -watched.code in _CRASHES else Failure.EXIT)
    if not is_beginning(watched.out, bare.out, ending):
        failures.append(Failure.OUTPUT)
    if is_term and ending.code == -signal.SIGTERM and watched.wall_s - deadly.at_s > MAX_END_S:
        failures.append(Failure.LATE)
    return failures


def is_beginning(out: str, bare_out: str, ending: Ending) -> bool:
    """Return whether output begins like the bare run's, and ends with what the signal prints."""
    if ending.output and ending.code not in (-signal.SIGTERM, -signal.SIGINT):
        return out.endswith(ending.output) and bare_out.startswith(out.removesuffix(ending.output))
    return bare_out.startswith(out)


def _find_bad_report(
    program: Program, watched: Ended, report: Mapping[str, Any] | None
) -> list[Failure]:
    """Return what is wrong with the report of a run that ended by itself."""
    failures = []
    if _OWN_FRAMES in watched.err:
        failures.append(Failure.TRACEBACK)
    if program.leaves_report and report is None:
        failures.append(Failure.NO_REPORT)
    elif program.has_whole_step and report is not None and not has_whole_step(report):
        failures.append(Failure.NO_STEP)
    return failures


def has_whole_step(report: Mapping[str, Any]) -> bool:
    """Return whether a report has a complete step, or a job's report one of each rank."""
    if ranks := report.get("ranks"):
        return all(rank["step_names"] for rank in ranks)
    return bool(report["summary"]["steps"])
