"""The one capture that a process can have open, and how often each name was recorded.

torch allows one profiler per process. The outermost block records; a block inside it, on the same
thread, is a named region; a block on another thread meanwhile is not recorded.
"""

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from profkit.capture.process import console, devices, signals
from profkit.capture.process.devices import OnlyDevice
from profkit.capture.recording import profiler
from profkit.capture.recording.options import IS_ON, Options
from profkit.capture.recording.recording_writer import forget_lines
from profkit.capture.recording.schedule import Schedule
from profkit.capture.recording.session import Session
from profkit.model.capture_info import StepKind

is_on: bool = IS_ON
"""Whether anything is recorded; not in a child that was forked while something was."""

session: Session | None = None
"""The open capture."""

on_killed: Callable[[str], object] | None = None
"""Called after a capture that SIGTERM ended early was written."""

step_listeners: Final[list[Callable[[], None]]] = []
"""Called at every ``step()`` of every ``profkit.trace``, recorded or not."""

n_recorded: Final[dict[str, int]] = {}
"""How often each name was recorded; one more than its limit once that was printed."""

_lock: Final = threading.RLock()
_is_present: Final[dict[OnlyDevice, bool]] = {}


def is_absent(device: OnlyDevice) -> bool:
    """Whether a kind of device is missing, as far as known without importing torch."""
    if device not in _is_present:
        if "torch" not in sys.modules:
            return True
        _is_present[device] = devices.is_present(device)
    return not _is_present[device]


def is_known(device: OnlyDevice) -> bool:
    """Whether :func:`is_absent` is final for a device, because torch was asked."""
    return device in _is_present


def enter(
    name: str,
    limit: int,
    options: Options,
    schedule: Schedule | None,
    steps: StepKind,
    first_step: int = 0,
) -> Session | contextlib.AbstractContextManager[Any] | None:
    """Open a block: as the capture, as a region of the open one, or (None) not at all.

    Args:
        limit: How often the name is recorded in this process.
        schedule: Which steps to record, or None for the whole block.
        first_step: The number of the first step, from 0.
    """
    global session  # noqa: PLW0603  (the one capture of the process is this module's purpose)
    with _lock:
        if session is not None:
            return _region_in(session, name)
        if n_recorded.get(name, 0) >= limit:
            _note_limit(name, limit, quiet=options.quiet)
            return None
        n_recorded[name] = n_recorded.get(name, 0) + 1
        session = opened = Session(name, options, schedule, steps, first_step)
        signals.on_sigterm(_finish_early)
    opened.begin()
    return opened


def leave(entered: Session, stopped_by: str = "", *, is_last: bool = False) -> None:
    """Close a capture. In a forked child it is only forgotten.

    Args:
        stopped_by: The exception that ended the block, or empty.
        is_last: Whether the program has ended.
    """
    global session  # noqa: PLW0603
    if entered.pid == os.getpid():
        entered.end(stopped_by, is_last=is_last)
    with _lock:
        if session is entered:
            session = None
    signals.remove(_finish_early)


def reset_limits() -> None:
    """Record every name up to its limit again, with new source lines.

    A notebook runs the same names again after their code was changed.
    """
    n_recorded.clear()
    forget_lines()


def step_ended() -> None:
    """Call the step listeners."""
    for listener in step_listeners:
        listener()


def _region_in(outer: Session, name: str) -> contextlib.AbstractContextManager[Any] | None:
    if outer.thread != threading.get_ident() or not outer.is_recording:
        return None
    region = profiler.region(name)
    region.__enter__()
    return region


def _note_limit(name: str, limit: int, *, quiet: bool) -> None:
    if n_recorded.get(name, 0) <= limit:
        n_recorded[name] = limit + 1
        times = "once" if limit == 1 else f"{limit} times"
        console.note(
            f"recorded “{name}” {times}, its limit; later blocks are not recorded.", quiet=quiet
        )


def _finish_early(stopped_by: str) -> bool:
    """End the open capture because the process is about to end; False if it is busy."""
    opened = session
    if opened is None or opened.pid != os.getpid():
        return True
    if opened.is_busy:
        return False
    leave(opened, stopped_by)
    if on_killed is not None and stopped_by == "SIGTERM":
        on_killed(stopped_by)
    return True


def _forget_in_child() -> None:
    """Switch off in a forked child: it has the profiler's memory, but none of its threads."""
    global session, is_on  # noqa: PLW0603
    if not n_recorded:
        return
    profiler.disable_in_child(recording=session is not None)
    if session is not None:
        is_on = False
        session.over = True
        session = None
        signals.remove(_finish_early)


atexit.register(_finish_early, "exit")
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
