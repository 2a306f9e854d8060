"""The program's own profilers: noticed before they begin, and never disturbed.

torch has one profiler per process, in any thread. Preparing a second one cancels the first: it
records nothing more, and stopping it is a segmentation fault. So profkit ends its own recording
before a profiler of the program is prepared, and records none while one is open.

A profiler is noticed when it is made, prepared for its warm-up, or started, in any thread. Code
that only marks ranges for an external profiler (``torch.cuda.nvtx``, ``torch.profiler.itt``) is
not one: it records nothing in the process.

Source: ``torch/autograd/profiler.py``, ``torch/autograd/profiler_legacy.py`` and
``torch/profiler/profiler.py``. The classes, ``profile._prepare_trace``, ``profile.entered``,
``profile.kineto_results``, ``_is_profiler_enabled``, and ``_run_on_profiler_start`` and its
counterpart, which torch's profilers and those of other packages call, are there in torch 2.6 to
2.14. What a later version may lack is not watched: the others notice the same profilers.
``SyncActivityProfilerHandler::prepareTrace`` in libkineto cancels what is active.
``RegisterLibKinetoClient`` in ``torch/csrc`` starts Kineto's daemon client if ``KINETO_USE_DAEMON``
is set. ``PythonTracer::PythonTracer`` in ``torch/csrc/autograd/profiler_python.cpp`` replaces the
profile function of every thread, and its ``stop`` removes them, in newer versions also those that
others have set since.
"""

import contextlib
import functools
import gc
import importlib
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextvars import ContextVar
from typing import Any, Final

from profkit.capture.process import console
from profkit.capture.process.objects import instances, type_ids
from profkit.capture.process.wrappers import replace_attribute

Listener = Callable[[str], None]
"""Receives the name of a profiler of the program, in its thread, before it does anything."""

DAEMON: Final = "KINETO_USE_DAEMON"
"""With it in the environment, a daemon such as dynolog may record at any time."""
_AUTOGRAD: Final = "torch.autograd.profiler"
_STARTS: Final = "_run_on_profiler_start"
_STOPS: Final = "_run_on_profiler_stop"
_WATCHED: Final = (
    ("torch.profiler.profiler", "_KinetoProfile", "__init__", "torch.profiler.profile"),
    ("torch.profiler.profiler", "ExecutionTraceObserver", "__init__", "ExecutionTraceObserver"),
    (_AUTOGRAD, "profile", "__init__", "torch.autograd.profiler.profile"),
    (_AUTOGRAD, "profile", "_prepare_trace", "torch.profiler.profile"),
    (_AUTOGRAD, "emit_nvtx", "__init__", "emit_nvtx"),
    (_AUTOGRAD, "emit_itt", "__init__", "emit_itt"),
    (_AUTOGRAD, "", _STARTS, "torch.autograd.profiler"),
    (_AUTOGRAD, "", _STOPS, ""),
    ("torch.autograd.profiler_legacy", "profile", "__init__", "profiler_legacy.profile"),
    ("torch.autograd.profiler_legacy", "profile", "_start_trace", "profiler_legacy.profile"),
)
"""Modules, classes (or none) and functions that are called before a profiler does anything, and
the profiler's name for messages."""
_SETS_PROFILE: Final = (
    ("sys", "", "setprofile", "sys.setprofile"),
    ("sys", "", "_setprofileallthreads", "threading.setprofile_all_threads"),
    ("cProfile", "Profile", "enable", "cProfile"),
)
"""The same for what sets a profile function. ``sys.setprofile`` runs in each thread that begins
after ``threading.setprofile``."""
HAS_MONITORING: Final = sys.version_info >= (3, 12)
"""cProfile then uses ``sys.monitoring``."""
_TRACER_USES_MONITORING: Final = sys.version_info[:2] == (3, 12)
"""In which torch's Python tracer counts calls of C functions by ``sys.monitoring``, as the tool of
the same number as cProfile, whose calls are lost if torch ends before it.

Source: ``registerMonitoringCallback`` in ``torch/csrc/autograd/profiler_python.cpp``."""


class ProgramProfilers:
    """What is known of the profilers of this process's program.

    Attributes:
        is_active: Whether one records, while there are listeners. Reading it calls nothing, which a
            profiler with stacks would record.
        is_none_made: Whether the program is known to have made none since torch was imported.
    """

    is_active: bool = False
    is_none_made: bool = False


state: Final = ProgramProfilers()
_is_own: Final[ContextVar[bool]] = ContextVar("profkit_profiles", default=False)
_listeners: Final[list[Listener]] = []
_lock: Final = threading.RLock()
_undo: Final[list[Callable[[], None]]] = []


@contextlib.contextmanager
def own() -> Iterator[None]:
    """Have the profilers of this block count as profkit's own, which no listener receives."""
    token = _is_own.set(True)
    try:
        yield
    finally:
        _is_own.reset(token)


def subscribe(listener: Listener, *, from_import: bool = False) -> None:
    """Call a listener for each profiler of the program from now on; torch must be imported.

    Args:
        from_import: Whether torch was imported just now, so that no profiler was missed.
    """
    with _lock:
        state.is_none_made |= from_import and not _undo
        _listeners.append(listener)
        if not _undo:
            _undo.extend(_observe_all(_WATCHED, _notify))


def unsubscribe(listener: Listener) -> None:
    """Stop calling a listener, unless that was done. The last one restores torch's functions."""
    with _lock:
        if listener in _listeners:
            _listeners.remove(listener)
        if not _listeners:
            state.is_active = state.is_none_made = False
            while _undo:
                _undo.pop()()


@contextlib.contextmanager
def watching_python(listener: Listener) -> Iterator[None]:
    """Call a listener, in this block, before the program sets a profile function.

    Packages that set one in C are not noticed.
    """
    undo = _observe_all(_SETS_PROFILE, listener)
    try:
        yield
    finally:
        for restore in undo:
            restore()


def watch_functions(
    module: str, names: Collection[str], listener: Listener
) -> list[Callable[[], None]]:
    """Call a listener before the program calls any of a module's functions; returns what undoes it.

    Calls within :func:`own` are not the program's.
    """
    return _observe_all([(module, "", name, module) for name in names], listener)


def is_recording() -> bool:
    """Return whether a profiler records now, in this thread or, by torch's count, in any other."""
    torch = sys.modules.get("torch")
    with contextlib.suppress(AttributeError):
        return torch is not None and bool(
            getattr(torch.autograd.profiler, "_is_profiler_enabled", False)
            or torch._C._autograd._profiler_enabled()  # noqa: SLF001  (torch has no public way)
        )
    return False


def is_open(except_for: Collection[object] = ()) -> bool:
    """Return whether a profiler of the program records, or is in its warm-up.

    torch does not say whether one is in its warm-up.

    Looks through all Python objects, which takes some fifty milliseconds, unless all profilers of
    the program since torch's import would have been noticed.

    Args:
        except_for: Cancelled profilers of this thread, which torch counts as recording.
    """
    torch_autograd = sys.modules.get(_AUTOGRAD)
    is_enabled = bool(getattr(torch_autograd, "_is_profiler_enabled", False))
    if is_enabled or (not except_for and is_recording()):
        return True
    if state.is_none_made:
        return False

    torch_profiler = sys.modules.get("torch.profiler")
    kinds = [getattr(module, "profile", None) for module in (torch_autograd, torch_profiler)]
    types = type_ids(*(kind for kind in kinds if kind is not None))
    return any(
        _is_warming_up(profile) and not any(profile is excluded for excluded in except_for)
        for profile in instances(gc.get_objects(), types)
    )


def find_python_profiler() -> str:
    """Find a profiler of Python calls in use, whose profile function torch's tracer would replace.

    One that another thread has set by ``sys.setprofile`` cannot be seen. Trace functions, as of
    debuggers and coverage, and ``sys.monitoring`` are independent of profile functions.

    Returns:
        Its name, or empty.
    """
    if sys.getprofile() is not None:
        return "sys.setprofile"
    if getattr(threading, "_profile_hook", None) is not None:
        return "threading.setprofile"
    with contextlib.suppress(Exception):  # it is another package's function
        if "yappi" in sys.modules and sys.modules["yappi"].is_running():
            return "yappi"

    if _TRACER_USES_MONITORING:
        monitoring: Any = vars(sys)["monitoring"]
        return str(monitoring.get_tool(monitoring.PROFILER_ID) or "")

    # `sys.getprofile()` is of this thread: a cProfile in another one is found by its object.
    profiler = getattr(sys.modules.get("_lsprof"), "Profiler", None)
    if profiler is None or HAS_MONITORING:
        return ""
    return "cProfile" if instances(gc.get_objects(), type_ids(profiler)) else ""


def has_daemon() -> bool:
    """Return whether Kineto waits for requests of a daemon."""
    return DAEMON in os.environ


def _is_warming_up(profile: Any) -> bool:  # noqa: ANN401  (of torch.profiler or torch.autograd)
    """Return whether a profiler is prepared and has no results yet.

    One that accumulates the events of several cycles retains the results of the first.
    """
    if hasattr(profile, "entered"):
        return bool(profile.entered) and getattr(profile, "kineto_results", None) is None
    action = getattr(getattr(profile, "current_action", None), "name", "")
    started = getattr(profile, "profiler", None) is not None
    return started and action == "WARMUP" and bool(getattr(profile, "acc_events", False))


def _observe_all(
    places: Collection[tuple[str, str, str, str]], notify: Listener
) -> list[Callable[[], None]]:
    """Have functions call a listener first, as far as they exist; returns what undoes it."""
    return list(filter(None, (_observe_calls(*place, notify) for place in places)))


def _observe_calls(
    module: str, kind: str, name: str, profiler: str, notify: Listener
) -> Callable[[], None] | None:
    """Have a function call a listener first; returns what undoes that."""
    owner: Any = None
    with contextlib.suppress(ImportError):
        owner = importlib.import_module(module)
    if kind:
        owner = getattr(owner, kind, None)
    original = getattr(owner, name, None)
    if original is None:
        return None

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if not _is_own.get():
            if name in {_STARTS, _STOPS}:
                state.is_active = name == _STARTS
            if profiler:
                state.is_none_made = False
                _call(notify, profiler)
        return original(*args, **kwargs)

    return replace_attribute(owner, name, wrapper)


def _notify(profiler: str) -> None:
    for listener in tuple(_listeners):  # they unsubscribe
        _call(listener, profiler)


def _call(listener: Listener, profiler: str) -> None:
    try:
        listener(profiler)
    except Exception as error:  # noqa: BLE001  (no error of ours may end the user's program)
        console.warn("the program's profiler may be disturbed.", error)
