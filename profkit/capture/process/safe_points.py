"""Where torch's profiler may be started and stopped: in Python code that the program itself calls.

Stopped in the middle of something, it breaks the program. Within a call of its own profile function
it waits for itself for ever. Within a node of a backward pass, or while the program is compiled or
traced, what it sets is undone or becomes a part of the program's graph. An operator that is open
writes its end into memory that is free by then. So no signal handler, other thread, finalizer or
callback of the garbage collector starts or stops a recording, no hook of gradients and no code that
an operator calls. They leave it to the next safe point: the begin or end of a step or of a block,
and the end of the program.

Source: in ``torch/csrc/autograd``, ``PythonTracer::stop`` in ``profiler_python.cpp``,
``Engine::thread_main`` (``ThreadLocalStateGuard``) in ``engine.cpp``, ``onFunctionExit`` in
``profiler_kineto.cpp``, and ``THPFunction_apply``, which opens an operator of the function's name,
in ``python_function.cpp``.
"""

import contextlib
import gc
import inspect
import os
import sys
from collections.abc import Iterator
from functools import cache
from inspect import iscode
from types import CodeType, FrameType
from typing import Final

from profkit.capture.process import signals
from profkit.capture.process.compiling import is_program_paused
from profkit.capture.process.objects import types_of
from profkit.capture.process.optimizer_steps import step_regions

_CALLED_BY_C: Final = frozenset({"__del__", "__torch_dispatch__", "__torch_function__"})
"""Methods that Python or torch calls from C at any place, within operators too."""
_CALLED_BY_OPERATORS: Final = (
    os.path.join("torch", "_ops.py"),  # noqa: PTH118  (compared with the names of files)
    os.path.join("torch", "_library", ""),  # noqa: PTH118
    os.path.join("torch", "autograd", "function.py"),  # noqa: PTH118
    os.path.join("torch", "_higher_order_ops", ""),  # noqa: PTH118
)
"""Code of torch below which an operator is open, or a function of autograd."""
_CALLED_BY_AUTOGRAD: Final = frozenset({"forward", "setup_context"})
"""Methods of a function of autograd that run in its ``apply``, which is C code since torch 2.14.
Modules have methods of these names too."""


def is_safe() -> bool:
    """Return whether torch's profiler may be started or stopped here, on this thread.

    Before it is, :func:`is_collecting` must be false as well.
    """
    if is_program_paused():
        return False

    forbidden = {*_handlers(), *step_regions()}
    methods: set[CodeType] = set()
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  (CPython's only way)
    while frame is not None:
        code = frame.f_code
        if code in forbidden or code.co_name in _CALLED_BY_C or _is_below_operator(code):
            return False
        if code.co_name in _CALLED_BY_AUTOGRAD:
            methods.add(code)
        frame = frame.f_back
    return not methods or methods.isdisjoint(_methods_of_functions())


@cache
def _is_below_operator(code: CodeType) -> bool:
    return any(place in code.co_filename for place in _CALLED_BY_OPERATORS)


def _handlers() -> Iterator[CodeType]:
    """Yield the code that Python calls between any two instructions of the program."""
    for callback in (*signals.python_handlers().values(), *gc.callbacks):
        function = getattr(callback, "__func__", callback)
        code = getattr(function, "__code__", None)
        if iscode(code):
            yield code


def _methods_of_functions() -> Iterator[CodeType]:
    """Yield the code that runs in ``apply`` of the program's functions of autograd."""
    from torch.autograd import Function

    for kind in types_of(Function):
        for name in _CALLED_BY_AUTOGRAD & vars(kind).keys():
            # Decorators, such as custom_fwd, lead to what they call.
            with contextlib.suppress(ValueError):
                code = getattr(inspect.unwrap(vars(kind)[name]), "__code__", None)
                if iscode(code):
                    yield code


def is_collecting() -> bool:
    """Return whether this is code that a garbage collection runs; begins one to find out.

    Until Python 3.11 any allocation may collect, also the one of the frame that a profile function
    is about to be called with: torch's tracer is then active below. Callbacks of weak references
    cannot be distinguished from other code by their frames.

    Source: collections are left to the evaluation loop since Python 3.12 (gh-97922).
    """
    if sys.version_info >= (3, 12) or not gc.isenabled():
        return False
    n_before = _n_young_collections()
    gc.collect(0)  # does nothing inside another one
    return _n_young_collections() == n_before


def _n_young_collections() -> int:
    return gc.get_stats()[0]["collections"]
