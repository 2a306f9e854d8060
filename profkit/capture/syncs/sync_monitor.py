"""Hears of the host's waits for a CUDA device, in all threads, while anybody listens.

Three things tell of a wait. torch's sync debug mode warns of what torch's own operators and
``Stream.synchronize`` wait for; ``explicit`` stands before ``torch.cuda.synchronize`` and
``Event.synchronize``, which the mode passes over; and, if asked for, ``callbacks`` hears of waits
in extensions, whose warnings never reach Python.

A filter of Python's warnings takes the mode's warning. What makes it more than a filter is that
its pattern is asked with every warning, in the thread and at the place that it comes from, so that
it can say where the program is, and can raise an error there: ``warnings`` only asks the pattern
to ``match``. Nothing else of the program's warnings is touched, neither how they are shown nor how
often. A program that puts a filter of its own before ours (``warnings.simplefilter("ignore")``)
silences what the mode has to tell.

Source: ``c10/cuda/CUDAFunctions.cpp`` (``warn_or_error_on_sync``, called by ``memcpy_and_sync`` and
``stream_synchronize``); ``torch/csrc/Exceptions.cpp`` (a warning of C++ becomes one of Python when
the call returns, and an error raised meanwhile is that of the call);
``torch.cuda.set_sync_debug_mode``, whose docs leave out what torch.distributed and torch.sparse do;
``get_filter`` and ``check_matched`` in CPython's ``Python/_warnings.c``.
"""

import re
import sys
import threading
import warnings
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any, Final

from profkit.capture.source.user_code import UserCode
from profkit.capture.syncs import explicit_calls, gpu_trace, regions
from profkit.capture.syncs.wait import Listener, Wait

OPERATION: Final = "an operation that waits for the device"
"""What the debug mode tells: not which operation, but the line is known."""

SAID_BY_TORCH: re.Pattern[str] = re.compile(r"called a synchronizing (CUDA|HIP) operation")

_PROTOTYPE: Final = re.compile(r"Synchronization debug mode is a prototype feature")
"""Said once a process when the mode is switched on, to nobody who asked for it."""
_WARN: Final = 1
"""torch's number for the mode that warns."""


_lock: Final = threading.RLock()
_listeners: Final[list[Listener]] = []
_undo: Callable[[], None] | None = None


def listen(listener: Listener, *, with_callbacks: bool = False) -> None:
    """Tell of every wait from here on.

    Args:
        listener: Is told in the waiting thread, and may raise if the wait allows it.
        with_callbacks: Hear of waits in extensions too, by torch's GPU trace.
    """
    global _undo  # noqa: PLW0603  (torch has one such mode a process)
    import torch

    with _lock:
        _listeners.append(listener)
        if not can_hear():
            return
        if _undo is None:
            _undo = _switch_on(torch)
        if with_callbacks:
            gpu_trace.begin(_told_by_trace)


def can_hear() -> bool:
    """Whether torch is built with CUDA, so that what waits can be heard."""
    import torch

    return hasattr(torch._C, "_cuda_set_sync_debug_mode")  # noqa: SLF001


def unlisten(listener: Listener) -> None:
    """Tell no more. With the last listener everything is as it was before the first.

    Args:
        listener: What was told so far.
    """
    global _undo  # noqa: PLW0603
    with _lock:
        # What only the trace knows of is told late, and must be told before it is too late.
        for wait in gpu_trace.left_over():
            _tell(wait, at_the_line=False)
        _listeners.remove(listener)
        if not _listeners and _undo is not None:
            gpu_trace.end()
            _undo()
            _undo = None


def _switch_on(torch: Any) -> Callable[[], None]:  # noqa: ANN401  (the module)
    """Set torch's mode and our filter; what puts back both."""
    # By the function behind ``torch.cuda.set_sync_debug_mode``, which starts CUDA first: a program
    # that has not started it could not fork any more.
    set_mode, get_mode = torch._C._cuda_set_sync_debug_mode, torch._C._cuda_get_sync_debug_mode  # noqa: SLF001
    before = get_mode()
    taker = _Taker(passes_on=before == _WARN)
    entry = _put_first(taker)
    set_mode(_WARN)
    put_back_calls = explicit_calls.stand_before(_told_by_call)

    def undo() -> None:
        put_back_calls()
        if get_mode() == _WARN:  # else the program has set another meanwhile, which is its own
            set_mode(before)
        if entry in warnings.filters:
            warnings.filters.remove(entry)  # type: ignore[attr-defined]  # (a list, by the C code)

    return undo


def _put_first(taker: "_Taker") -> tuple[Any, ...]:
    """Make a filter the first that is asked."""
    # The public way forgets which warnings were said before: without that, one which the program
    # had already seen at a line would not be asked about again.
    warnings.filterwarnings("ignore", message=SAID_BY_TORCH.pattern, category=UserWarning)
    entry = ("ignore", taker, UserWarning, None, 0)
    warnings.filters[0] = entry  # type: ignore[index]  # (a list, by the C code)
    return entry


class _Taker:
    """What stands in a filter of Python's warnings for the pattern of the message.

    Args:
        passes_on: Whether the program asked for the mode's warnings itself, and shall have them.
    """

    def __init__(self, *, passes_on: bool) -> None:
        self._passes_on = passes_on

    def match(self, text: str) -> bool:
        """Whether the filter takes a warning; tells of it if it is the mode's.

        Args:
            text: The warning's text.
        """
        if SAID_BY_TORCH.match(text):
            _told_by_mode(sys._getframe(1))  # noqa: SLF001
            return not self._passes_on
        return _PROTOTYPE.match(text) is not None


def _told_by_mode(frame: FrameType) -> None:
    # Where the trace has told of the same wait it is counted once, here, where an error comes out.
    known = gpu_trace.take(_key(frame))
    if not regions.is_ours():
        _tell(known or _wait(OPERATION, frame), at_the_line=True)


def _told_by_call(what: str, frame: FrameType) -> None:
    if not regions.is_ours():
        _tell(_wait(what, frame), at_the_line=True)


def _told_by_trace(what: str, frame: FrameType) -> None:
    if regions.is_ours() or explicit_calls.is_within():
        return
    # torch only logs an error raised here. If the mode tells of this wait too, it does so next.
    for wait in gpu_trace.keep(_key(frame), _wait(what, frame)):
        _tell(wait, at_the_line=False)


def _tell(wait: Wait, *, at_the_line: bool) -> None:
    for listener in _listeners:
        listener(wait, at_the_line)


def _key(frame: FrameType) -> tuple[int, int]:
    """A place in a running function: the same until it goes on."""
    return id(frame), frame.f_lasti


def _wait(what: str, frame: FrameType) -> Wait:
    return Wait(
        what=what,
        place=_user_code().innermost(frame),
        reason=regions.reason.get(),
        guard=regions.guard.get(),
        is_foreign=_is_foreign(),
    )


@cache
def _user_code() -> UserCode:
    # Made when it is first asked for: it asks torch where it is, and imports it.
    return UserCode()


def _is_foreign() -> bool:
    # ``threading.current_thread`` would make an object for a foreign thread, and keep it.
    known = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]  # noqa: SLF001
    return known is None or isinstance(known, threading._DummyThread)  # noqa: SLF001
