"""Keeps torch's profiler from printing, warning and importing in the user's program."""

import contextlib
import ctypes
import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

_LEVEL_VARIABLE: Final = "KINETO_LOG_LEVEL"
_SILENT: Final = 6
"""Above Kineto's highest level, at which torch 2.13 prints two debug lines per recording."""
_LEVEL_SYMBOL: Final = "_ZN9libkineto6Logger14severityLevel_E"
"""libkineto's ``Logger::severityLevel_``."""
_ALLOCATOR_LEVEL_SYMBOL: Final = "FLAGS_caffe2_log_level"
"""The level from which c10 prints its log messages."""
_ERROR: Final = 2
"""c10's ``GLOG_ERROR``."""
_TRACER_WARNING: Final = r"(?s).*\(Triggered internally at \S*/csrc/profiler/"
_STDERR: Final = 2
_THREAD_ERROR: Final = (
    rb"ERROR: External init callback must run in same thread as registerClient[^\n]*\n?"
)


class _ProcessState:
    """What was done in this process.

    Attributes:
        is_prepared: Whether a profiler was prepared: only the first one prints the thread error.
    """

    is_prepared: bool = False


_state: Final = _ProcessState()


@contextlib.contextmanager
def without_debug_lines() -> Iterator[None]:
    """Keep Kineto's debug lines off stderr, unless the user has set a log level.

    The level is restored, so that the program's own profilers print what they always do. Where it
    cannot be reached it is set for the whole process: Kineto reads it once, when the first profiler
    is prepared.

    Source: libkineto reads ``KINETO_LOG_LEVEL`` in ``libkineto_init``, and compares the level of
    each message with ``Logger::severityLevel_``.
    """
    if _LEVEL_VARIABLE in os.environ:
        yield
        return

    level = _find_level("libtorch_cpu.so", _LEVEL_SYMBOL)
    if level is None:
        os.environ[_LEVEL_VARIABLE] = str(_SILENT)
        try:
            yield
        finally:
            os.environ.pop(_LEVEL_VARIABLE, None)
        return

    before, level.value = level.value, _SILENT
    try:
        yield
    finally:
        if level.value == _SILENT:  # else Kineto has set its own, with the first profiler
            level.value = before


@contextlib.contextmanager
def without_allocator_warning() -> Iterator[None]:
    """Start a recording of memory without the line that torch prints about the first free in it.

    Torch prints that a block "of unknown size was allocated before the profiling started" on the
    first of each thousand such frees. Here one is freed while only errors are printed, which is for
    a few microseconds.

    Source: ``ProfiledCPUMemoryReporter::Delete`` in ``c10/core/CPUAllocator.cpp``.
    """
    import torch

    block = torch.UntypedStorage(1)  # not a tensor, of which the program's modes would know
    yield
    level = _find_level("libc10.so", _ALLOCATOR_LEVEL_SYMBOL)
    if level is None:
        return

    before, level.value = level.value, max(level.value, _ERROR)
    del block
    level.value = before


@cache
def _find_level(library: str, symbol: str) -> Any:  # noqa: ANN401  (a C integer, or None)
    """Find the log level of one of torch's libraries; None where the library does not show it."""
    import torch

    path = Path(torch.__file__).parent / "lib" / library
    with contextlib.suppress(OSError, ValueError, AttributeError):
        loaded = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return ctypes.c_int.in_dll(loaded, symbol)
    return None


@contextlib.contextmanager
def without_thread_error() -> Iterator[None]:
    """Prepare a profiler in this block without a line of Kineto that complains of its thread.

    The line is of any profiler that is first used in another thread than the one that imported
    torch. Its client, which has nothing to set up for a recording, is left alone then, and the
    recording is complete. Everything else that is written to stderr is printed after the block.

    Source: ``LibkinetoApi::initClientIfRegistered`` in ``libkineto.cpp``, which prints the line
    with ``fprintf``, whatever the log level.
    """
    is_first, _state.is_prepared = not _state.is_prepared, True
    if not is_first or threading.current_thread() is threading.main_thread():
        yield
        return
    with contextlib.ExitStack() as stack:
        # A program may have closed its stderr, or may have no file descriptor left.
        with contextlib.suppress(OSError):
            stack.enter_context(_stderr_without_thread_error())
        yield


@contextlib.contextmanager
def _stderr_without_thread_error() -> Iterator[None]:
    """Collect what is written to stderr in this block, and write it without the line at the end."""
    with tempfile.TemporaryFile(buffering=0) as written:
        # By its descriptor: Kineto writes in C, and knows nothing of `sys.stderr`.
        stderr = os.dup(_STDERR)
        os.dup2(written.fileno(), _STDERR)
        try:
            yield
        finally:
            os.dup2(stderr, _STDERR)
            os.close(stderr)
            written.seek(0)
            text = re.sub(_THREAD_ERROR, b"", written.read())
            with contextlib.suppress(OSError):
                os.write(_STDERR, text)


@contextlib.contextmanager
def without_inductor() -> Iterator[None]:
    """Keep torch's profiler from importing ``torch._inductor``: 800 modules, 1.2 s of CPU time.

    It asks Inductor whether that uses CUDA graphs. One that the program has not imported has no
    settings but its environment variable. Other threads may import it meanwhile.

    Source: ``torch.profiler._KinetoProfile.prepare_trace``, in torch 2.6 ``start_trace``;
    ``torch.__getattr__`` imports ``_inductor`` on first access.
    """
    import torch

    original = torch.__dict__.get("__getattr__")
    uses_graphs = os.environ.get("TORCHINDUCTOR_CUDAGRAPHS") == "1"
    if original is None or "torch._inductor" in sys.modules or uses_graphs:
        yield
        return

    thread = threading.get_ident()

    def attribute(name: str) -> Any:  # noqa: ANN401
        if name == "_inductor" and threading.get_ident() == thread:
            raise AttributeError(name)
        return original(name)

    torch.__dict__["__getattr__"] = attribute
    try:
        yield
    finally:
        torch.__dict__["__getattr__"] = original


class _EveryWarning:
    """A container that has every warning."""

    def __contains__(self, _: object) -> bool:
        return True


@contextlib.contextmanager
def without_cycle_warning() -> Iterator[None]:
    """Keep torch until 2.12 from warning that a profiler clears its events after each cycle.

    It warns of any profiler, once per process: the program's own still has it.

    Source: ``_warn_once`` in ``torch/profiler/profiler.py``; pytorch#180387, in torch 2.13.
    """
    module: Any = sys.modules["torch.profiler.profiler"]
    shown = getattr(module, "_WARNINGS_SHOWN", None)
    if shown is None:
        yield
        return

    module._WARNINGS_SHOWN = _EveryWarning()  # noqa: SLF001  (torch has no other way)
    try:
        yield
    finally:
        module._WARNINGS_SHOWN = shown  # noqa: SLF001


def ignore_tracer_warnings() -> None:
    """Have warnings of torch's tracer ignored from now on: they are not the program's.

    It warns of each operator that is open at the stop. Where the program called that operator, as
    with a dispatch mode, torch issues its warnings once it has returned, as if it were the one that
    warns. In a program that turns warnings into errors, it fails.

    Source: ``PyWarningHandler`` in ``torch/csrc/Exceptions.h``; seen with torch 2.13.
    """
    warnings.filterwarnings("ignore", message=_TRACER_WARNING)
