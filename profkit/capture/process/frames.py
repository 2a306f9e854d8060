"""Frames of running functions, and their local variables.

Until Python 3.12 a frame caches the dict that ``f_locals`` returns, which keeps the locals alive.
That dict is emptied here again, unless the program itself refers to it.
"""

import inspect
import sys
from collections.abc import Iterator
from itertools import filterfalse
from types import CodeType, FrameType
from typing import Final

from profkit.capture.process.objects import running_frames
from profkit.capture.source.user_code import is_profkit_frame

_LOCALS_ARE_A_VIEW: Final = (3, 13)
"""PEP 667."""
_RUNS_BACKWARD: Final = "_engine_run_backward"
"""The function of ``torch/autograd/graph.py`` that calls autograd's engine, and waits for it."""


def running() -> Iterator[FrameType]:
    """Return the frames of all threads except profkit's own, the innermost of each thread first."""
    return filterfalse(is_profkit_frame, running_frames())


def find_caller(depth: int = 1) -> FrameType | None:
    """Return the frame of what called the function that calls this.

    Autograd runs the backward pass of a device in a thread of its own, where no Python function is
    on the stack. The frame is then the one that waits for it, if a single thread does; else None.

    Args:
        depth: 1 for the caller of the function that calls this, 2 for the caller of that one.

    Source: ``Engine::start_device_threads`` in ``torch/csrc/autograd/engine.cpp``; a backward pass
    on the CPU runs in the thread that began it. Measured with torch 2.11 on an H100.
    """
    try:
        return sys._getframe(depth + 1)  # noqa: SLF001
    except ValueError:  # the stack is not that deep
        waiting = [
            frame
            for frame in sys._current_frames().values()  # noqa: SLF001
            if frame.f_code.co_name == _RUNS_BACKWARD
        ]
        return waiting[0] if len(waiting) == 1 else None


def describe_code(code: CodeType) -> str:
    """Return the name and first line of a function: ``Net.forward at train.py:12``."""
    name = code.co_qualname.rpartition("<locals>.")[2]
    file = code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"{name} at {file}:{code.co_firstlineno}"


def locals_of(frame: FrameType) -> dict[str, object]:
    """Return the local variables of a frame; none for a module's, whose locals are its globals."""
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        namespace = frame.f_locals
        return {} if namespace is frame.f_globals else dict(namespace)
    if sys.version_info >= _LOCALS_ARE_A_VIEW:
        return dict(frame.f_locals)

    cached = frame.f_locals
    values = dict(cached)
    if sys.getrefcount(cached) <= _REFCOUNT_OF_UNUSED_CACHE:
        # Names that exec() added exist nowhere else and stay.
        code = frame.f_code
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            cached.pop(name, None)
    return values


def local_values() -> list[object]:
    """Return the locals of all running functions, which the garbage collector does not list."""
    return [value for frame in running() for value in locals_of(frame).values()]


def clear_cached_locals() -> None:
    """Empty the cached locals of all frames, once nothing else of profkit refers to them."""
    for frame in running():
        locals_of(frame)


def _refcount_of_unused_cache() -> int:
    """Count the references to cached locals by the frame, a variable and an argument."""
    frame = sys._getframe()  # noqa: SLF001
    cached = frame.f_locals
    return sys.getrefcount(cached)


_REFCOUNT_OF_UNUSED_CACHE: Final = _refcount_of_unused_cache()
