"""Reports host-device syncs in all threads to its listeners, while there are any.

There are three sources. torch's sync debug mode warns when one of torch's own operators or
``Stream.synchronize`` blocks. :mod:`~profkit.capture.syncs.explicit_calls` wraps
``torch.cuda.synchronize`` and ``Event.synchronize``, which the mode leaves out. On request,
:mod:`~profkit.capture.syncs.gpu_trace` reports syncs in extensions, whose warnings never reach
Python.

The mode's warning is caught by an entry in ``warnings.filters`` whose message pattern is an object
of ours: ``warnings`` calls only its ``match``, with every warning, in the thread and at the place
of the warning. So ``match`` knows the source line and can raise there. Other warnings are not
affected, neither how they are shown nor how often. A program that inserts a filter before this one
(``warnings.simplefilter("ignore")``) silences the mode.

Source: ``c10/cuda/CUDAFunctions.cpp`` (``warn_or_error_on_sync``, called by ``memcpy_and_sync`` and
``stream_synchronize``); ``torch/csrc/Exceptions.cpp`` (a C++ warning becomes a Python warning when
the call returns, and an exception raised then is that of the call);
``torch.cuda.set_sync_debug_mode``, whose docs exclude torch.distributed and torch.sparse;
``get_filter`` and ``check_matched`` in CPython's ``Python/_warnings.c``.
"""

import re
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from types import FrameType
from typing import Any, Final

from profkit.capture.process import devices
from profkit.capture.process.frames import find_caller
from profkit.capture.source.user_code import Place, UserCode
from profkit.capture.syncs import explicit_calls, gpu_trace
from profkit.dataclass import dataclass
from profkit.model.live_memory import SyncSite
from profkit.model.location import Frame
from profkit.patterns import regex

allowed_reason: Final[ContextVar[str | None]] = ContextVar("profkit_allow_sync", default=None)
"""The reason of the innermost ``profkit.allow_sync`` in this context, or None."""

active_guard: Final[ContextVar[object]] = ContextVar("profkit_no_sync", default=None)
"""The innermost ``profkit.no_sync`` in this context, or None."""

OPERATION: Final = "a synchronizing operation"
"""The operation of the debug mode's warnings, which do not name it."""

SYNC_WARNING: re.Pattern[str] = regex(r"called a synchronizing (CUDA|HIP) operation")

_PROTOTYPE_WARNING: Final = regex(r"Synchronization debug mode is a prototype feature")
"""Issued once per process when the mode is switched on; dropped, as the user did not do that."""
_WARN: Final = 1
"""torch's number for the mode that warns."""


@dataclass(frozen=True)
class Sync:
    """The host blocks until a device has finished.

    Attributes:
        operation: What synchronizes, for the report.
        place: The source line, or None in a thread that runs no user code.
        allowed_reason: The reason given to ``profkit.allow_sync``, or None.
        guard: The innermost ``profkit.no_sync`` around it, or None.
        in_native_thread: Whether the thread was not started by Python, as autograd's are not.
    """

    operation: str
    place: Place | None
    allowed_reason: str | None
    guard: object
    in_native_thread: bool


Listener = Callable[[Sync, bool], None]
"""Receives a sync, and whether an exception that it raises surfaces at the source line."""


class SyncCounter:
    """Counts syncs per operation, source line and allowed reason."""

    def __init__(self) -> None:
        self._n_calls: Counter[tuple[str, str, int, str, str | None]] = Counter()
        self._lock = threading.Lock()

    def count(self, sync: Sync, _raises_at_line: bool = False) -> None:  # noqa: FBT001, FBT002  (a Listener)
        """Count one sync."""
        file, line, function = sync.place or ("", 0, "")
        with self._lock:
            self._n_calls[sync.operation, file, line, function, sync.allowed_reason] += 1

    def sites(self) -> tuple[SyncSite, ...]:
        """Return the counts, the most calls first, then by place."""
        with self._lock:
            counts = sorted(self._n_calls.items(), key=lambda item: (-item[1], *map(str, item[0])))
        return tuple(
            SyncSite(operation, Frame(file, line, function) if file else None, n_calls, reason)
            for (operation, file, line, function, reason), n_calls in counts
        )


_Instruction = tuple[int, int]
"""A frame's id and its current instruction, -1 without one: the same until the frame continues."""
_lock: Final = threading.RLock()
_listeners: Final[list[Listener]] = []
_pending: Final[dict[int, tuple[_Instruction, list[Sync]]]] = {}
"""By thread: syncs that the GPU trace has reported at an instruction, but not yet the mode."""


class _ProcessState:
    """Whether torch's mode is switched on in this process, which has one.

    Attributes:
        switch_off: Restores the mode from before; None while it is off.
    """

    switch_off: Callable[[], None] | None = None


_state: Final = _ProcessState()


def subscribe(listener: Listener, *, extensions: bool = False) -> None:
    """Call a listener for every sync from now on.

    Args:
        listener: Is called in the blocked thread, and may raise where the call says so.
        extensions: Report syncs in extensions too, by torch's GPU trace.
    """
    import torch

    with _lock:
        _listeners.append(listener)
        if not is_supported():
            return
        if _state.switch_off is None:
            _state.switch_off = _switch_on(torch)
        if extensions:
            gpu_trace.start(_on_trace_callback)


def is_supported() -> bool:
    """Tell whether torch is built with CUDA and can report syncs."""
    import torch

    return hasattr(torch._C, "_cuda_set_sync_debug_mode")  # noqa: SLF001


def unsubscribe(listener: Listener) -> None:
    """Stop calling a listener. The last one restores the state before the first."""
    with _lock:
        # The debug mode will not report these any more.
        for thread in list(_pending):
            _notify_pending(thread)
        _listeners.remove(listener)
        if not _listeners and _state.switch_off is not None:
            gpu_trace.stop()
            _state.switch_off()
            _state.switch_off = None


def _switch_on(torch: Any) -> Callable[[], None]:  # noqa: ANN401  (the module)
    """Set torch's mode and the filter; returns the function that restores both."""
    # The function behind ``torch.cuda.set_sync_debug_mode``, which initializes CUDA first: a
    # program that has not used CUDA yet could not fork any more.
    set_mode, get_mode = torch._C._cuda_set_sync_debug_mode, torch._C._cuda_get_sync_debug_mode  # noqa: SLF001
    before = get_mode()
    entry = _insert_filter(_SyncWarningFilter(pass_on=before == _WARN))
    set_mode(_WARN)
    unwrap_calls = explicit_calls.wrap_calls(_on_explicit_call)

    def undo() -> None:
        unwrap_calls()
        if get_mode() == _WARN:  # else the program has set another mode since
            set_mode(before)
        if entry in warnings.filters:
            warnings.filters.remove(entry)  # type: ignore[attr-defined]  # (a list, by the C code)

    return undo


def _insert_filter(pattern: "_SyncWarningFilter") -> tuple[Any, ...]:
    # The public function also resets which warnings were shown before: otherwise a warning that
    # the program has already seen at a line would not reach the filter.
    warnings.filterwarnings("ignore", message=SYNC_WARNING.pattern, category=UserWarning)
    entry = ("ignore", pattern, UserWarning, None, 0)
    warnings.filters[0] = entry  # type: ignore[index]  # (a list, by the C code)
    return entry


class _SyncWarningFilter:
    """The message pattern of an entry in ``warnings.filters``.

    Args:
        pass_on: Whether the program has set the mode itself, and should see its warnings.
    """

    def __init__(self, *, pass_on: bool) -> None:
        self._pass_on = pass_on

    def match(self, text: str) -> bool:
        """Tell whether the entry drops a warning; reports it if it is the mode's."""
        if SYNC_WARNING.match(text):
            _on_mode_warning(find_caller())
            return not self._pass_on
        return _PROTOTYPE_WARNING.match(text) is not None


def _on_mode_warning(frame: FrameType | None) -> None:
    # A sync that the trace has reported too counts once: here, where an exception surfaces.
    instruction, pending = _pending.get(threading.get_ident(), (None, []))
    is_traced = bool(pending) and instruction == _instruction_of(frame)
    traced = pending.pop(0) if is_traced else None
    if not devices.in_profkit_sync():
        _notify(traced or _sync(OPERATION, frame), raises_at_line=True)


def _on_explicit_call(operation: str, frame: FrameType) -> None:
    if not devices.in_profkit_sync():
        _notify(_sync(operation, frame), raises_at_line=True)


def _on_trace_callback(operation: str, frame: FrameType | None) -> None:
    if devices.in_profkit_sync() or explicit_calls.is_in_call():
        return
    # torch only logs an exception raised here. If the mode reports this sync too, it does so next:
    # those of other instructions it will not report.
    thread, instruction = threading.get_ident(), _instruction_of(frame)
    if _pending.get(thread, (instruction,))[0] != instruction:
        _notify_pending(thread)
    _pending.setdefault(thread, (instruction, []))[1].append(_sync(operation, frame))


def _instruction_of(frame: FrameType | None) -> _Instruction:
    return (id(frame), -1 if frame is None else frame.f_lasti)


def _notify_pending(thread: int) -> None:
    _, pending = _pending.pop(thread)
    for sync in pending:
        _notify(sync, raises_at_line=False)


def _notify(sync: Sync, *, raises_at_line: bool) -> None:
    for listener in _listeners:
        listener(sync, raises_at_line)


def _sync(operation: str, frame: FrameType | None) -> Sync:
    return Sync(
        operation,
        place=_user_code().innermost(frame),
        allowed_reason=allowed_reason.get(),
        guard=active_guard.get(),
        in_native_thread=_in_native_thread(),
    )


@cache
def _user_code() -> UserCode:
    # Created on first use, because it imports torch.
    return UserCode()


def _in_native_thread() -> bool:
    # ``threading.current_thread`` would create an object for such a thread, and retain it.
    thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]  # noqa: SLF001
    return thread is None or isinstance(thread, threading._DummyThread)  # noqa: SLF001
