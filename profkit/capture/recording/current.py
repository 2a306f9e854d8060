"""The one capture that a process can have open, and how often each name was recorded.

torch allows one profiler per process. The outermost block records; a block inside it, on the same
thread, is a named region; a block on another thread meanwhile is not recorded.
"""

import atexit
import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from profkit.capture.process import console, devices, signals
from profkit.capture.process.devices import OnlyDevice
from profkit.capture.recording import worker_samples
from profkit.capture.recording.options import IS_ON, Options
from profkit.capture.recording.recording_budget import StepBudget
from profkit.capture.recording.recording_writer import forget_lines
from profkit.capture.recording.region import Region
from profkit.capture.recording.schedule import Schedule
from profkit.capture.recording.session import Session
from profkit.model.capture_info import StepKind


class CurrentCapture:
    """What this process records.

    Attributes:
        is_on: Whether anything is recorded; not in a child that was forked while something was.
        session: The open capture, or None.
    """

    is_on: bool = IS_ON
    session: Session | None = None


state: Final = CurrentCapture()

step_listeners: Final[list[Callable[[], None]]] = []
"""Called at every ``step()`` of every ``profkit.trace``, recorded or not."""

n_recorded: Final[dict[str, int]] = {}
"""How often each name was recorded; one more than its limit once that was printed."""

_lock: Final = threading.RLock()
_is_present: Final[dict[OnlyDevice, bool]] = {}


def is_absent(device: OnlyDevice) -> bool:
    """Return whether a kind of device is missing, as far as known without importing torch."""
    if device not in _is_present:
        if "torch" not in sys.modules:
            return True
        _is_present[device] = devices.is_present(device)
    return not _is_present[device]


def is_known(device: OnlyDevice) -> bool:
    """Return whether :func:`is_absent` is final for a device, because torch was asked."""
    return device in _is_present


def enter(
    name: str, limit: int, options: Options, schedule: Schedule | None, steps: StepKind
) -> Session | contextlib.AbstractContextManager[Any] | None:
    """Open a block: as the capture, as a region of the open one, or (None) not at all.

    Args:
        limit: How often the name is recorded in this process.
        schedule: Which steps to record, or None for the whole block.
    """
    with _lock:
        outer = state.session
        if outer is not None:
            # The recording of steps ends within a loop, whose region would be left open.
            is_cut = schedule is not None and outer.records_steps
            return None if is_cut else _open_region(outer, name)
        if n_recorded.get(name, 0) >= limit:
            _note_limit(name, limit, quiet=options.quiet)
            return None
    return open_session(name, options, schedule, steps)


def open_session(
    name: str,
    options: Options,
    schedule: Schedule | None,
    steps: StepKind,
    first_step: int = 0,
    budget: StepBudget | None = None,
) -> Session | None:
    """Open a block as the capture, however often its name was recorded; None if there is one.

    Args:
        schedule: Which steps to record, or None for the whole block.
        first_step: The number of the first step, from 0.
        budget: Limits what the steps cost, or None.
    """
    with _lock:
        if state.session is not None:
            return None
        n_recorded[name] = n_recorded.get(name, 0) + 1
        state.session = opened = Session(name, options, schedule, steps, first_step, budget)
        signals.on_sigterm(_FINISHER)

    # Without the lock, so that other threads, which record nothing meanwhile, do not wait.
    opened.begin()
    return opened


def leave(entered: Session, stopped_by: str = "", *, is_last: bool = False) -> None:
    """Close a capture. In a forked child it is only forgotten.

    One that is open where no recording may be stopped stays open to the end of the program.

    Args:
        stopped_by: The exception or signal that ended the block, or empty.
        is_last: Whether the program has ended.
    """
    # The handler may only note SIGTERM: the program then comes here as if it ended by itself.
    if signals.is_pending():
        stopped_by = stopped_by or "SIGTERM"
    if entered.pid != os.getpid() or entered.end(stopped_by, is_last=is_last):
        detach(entered)


def detach(entered: Session) -> None:
    """Let other captures begin, whatever becomes of this one."""
    with _lock:
        if state.session is entered:
            state.session = None
    signals.remove(_FINISHER)
    # A run that is only frozen goes on with the recording of its steps.
    if entered.state.is_over:
        worker_samples.end()


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


def _open_region(outer: Session, name: str) -> contextlib.AbstractContextManager[Any] | None:
    if outer.thread != threading.get_ident() or not outer.is_recording:
        return None
    region = Region(name)
    region.__enter__()
    return region


def _note_limit(name: str, limit: int, *, quiet: bool) -> None:
    if n_recorded.get(name, 0) <= limit:
        n_recorded[name] = limit + 1
        times = "once" if limit == 1 else f"{limit} times"
        console.note(
            f"recorded “{name}” {times}, its limit; later blocks are not recorded.", quiet=quiet
        )


def _finish_early(stopped_by: str) -> None:
    """End the open capture because the process is about to end."""
    opened = state.session
    if opened is not None and opened.pid == os.getpid():
        leave(opened, stopped_by)


def _is_recording() -> bool:
    """Return whether a profiler runs, which can only be stopped at a safe point."""
    return state.session is not None and state.session.state.is_open


_FINISHER: Final = signals.Finisher(_finish_early, _is_recording)


def _forget_in_child() -> None:
    """Switch off in a forked child: it has the profiler's memory, but none of its threads."""
    if not n_recorded:
        return
    _disable_profiler_in_child(recording=state.session is not None)
    if state.session is not None:
        state.is_on = False
        state.session.forget()
        state.session = None
        signals.remove(_FINISHER)


def _disable_profiler_in_child(*, recording: bool) -> None:
    """Disable the copied profiler in a forked child, and let the child exit without destructors.

    The child's operators and calls would be recorded forever, and libkineto's destructors would
    wait for the missing threads at a normal exit, as they do after any use of torch's profiler.

    Args:
        recording: Whether the parent was recording when it forked.

    Source: seen with torch 2.13: ``std::system_error`` or a hang in a child that calls
    ``sys.exit`` after its parent has used ``torch.profiler``.
    """
    if recording:
        sys.setprofile(None)
        autograd = getattr(sys.modules.get("torch"), "autograd", None)
        if autograd is not None and hasattr(autograd, "_enable_record_function"):
            autograd._enable_record_function(False)  # noqa: FBT003, SLF001  (torch has no other way)

    # glibc calls the handler registered last first, with the exit status: here that is _exit
    # itself. Python has flushed its own files by then.
    with contextlib.suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)  # noqa: SLF001  (its name in C)


atexit.register(_finish_early, "exit")
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
