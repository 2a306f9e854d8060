"""Checks each start and stop of torch's profiler by profkit: only at a safe point of the program.

A safe point is reached by calls of Python functions alone, on the thread that runs the program. No
signal handler, finalizer, callback of a weak reference or of the garbage collector, profile
function, gradient hook, optimizer's step, operator, annotation or compilation may be open below it:
torch writes the end of an annotation into the memory of the recording in which it began. The
program's own use of the profiler is not checked, nor is profkit's measurement of what an event
costs, which has a thread of its own.

It is loaded into the program's process by ``sitecustomize``, and imports nothing that a program
could notice: torch's profiler is wrapped when torch imports it.
"""

import gc
import importlib.machinery
import json
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

CHECKED: Final = ("_prepare_profiler", "_enable_profiler", "_disable_profiler")
"""Functions as ``torch.autograd.profiler`` names them."""
_MODULE: Final = "torch.autograd.profiler"
_HERE: Final = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  (no imports)
PROFKIT: Final = os.path.join(_HERE.rpartition(f"{os.sep}tests{os.sep}")[0], "profkit", "")  # noqa: PTH118
"""The folder of the package."""
_WRAPPERS: Final = os.path.join(PROFKIT, "capture", "process", "")  # noqa: PTH118
"""The folder of functions that are called in place of torch's, and call those."""
_TORCH: Final = f"{os.sep}torch{os.sep}"
_OPERATOR_FILES: Final = (f"{_TORCH}_ops.py", f"{_TORCH}_library{os.sep}")
_FUNCTION_FILE: Final = f"{_TORCH}autograd{os.sep}function.py"
_FUNCTION_METHODS: Final = ("forward", "setup_context")
"""Run within ``apply`` of a function of autograd, which is C code since torch 2.14."""
_OPTIMIZER_FILES: Final = f"{_TORCH}optim{os.sep}"
_COMPILER_FILES: Final = (
    f"{_TORCH}_dynamo{os.sep}convert_frame.py",
    f"{_TORCH}_dynamo{os.sep}symbolic_convert.py",
    f"{_TORCH}_inductor{os.sep}compile_fx.py",
)
_MEASUREMENT: Final = "_measure_costs"
"""The function of profkit that measures what events cost, in a thread of its own."""
_STEP: Final = "Optimizer.step#"
_MAX_ARGUMENTS: Final = 3
"""Of functions that the interpreter calls by itself: with ``self``, signal and frame."""


def check_profiler(file: str) -> None:
    """Check all use of torch's profiler from now on, and append violations to a file."""
    sys.meta_path.insert(0, _ProfilerImport(file))


class _ProfilerImport:
    """Wraps the functions of torch's profiler once its module is imported."""

    def __init__(self, file: str) -> None:
        self._file = file

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the module as Python does."""
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        loader, execute = spec.loader, spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            wrap_functions(module, self._file)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def wrap_functions(module: ModuleType, file: str) -> None:
    """Replace the checked functions of a module by functions that check and then call them."""
    checker = Checker()
    if (annotation := getattr(module, "record_function", None)) is not None:
        note_annotations(annotation, checker.annotations)
    for name in CHECKED:
        setattr(module, name, _checking(name, getattr(module, name), checker, file))


class Annotations(threading.local):
    """The names of the annotations that are open on the thread that asks."""

    def __init__(self) -> None:
        self.names: list[str] = []


def note_annotations(annotation: Any, annotations: Annotations) -> None:  # noqa: ANN401
    """Have a class of annotations, as ``record_function``, note which of them are open."""
    enter, leave = annotation.__enter__, annotation.__exit__

    def noting_enter(self: Any) -> Any:  # noqa: ANN401
        result = enter(self)
        annotations.names.append(self.name)
        return result

    def noting_leave(self: Any, *exception: Any) -> Any:  # noqa: ANN401
        if self.name in annotations.names:
            annotations.names.remove(self.name)
        return leave(self, *exception)

    annotation.__enter__, annotation.__exit__ = noting_enter, noting_leave


def _checking(
    name: str, original: Callable[..., Any], checker: "Checker", file: str
) -> Callable[..., Any]:
    def checked(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        frame = sys._getframe(1)
        if violations := checker.find_violations(name, frame):
            _write(file, name, violations, frame)
        return original(*args, **kwargs)

    return checked


def _write(file: str, name: str, violations: list[str], frame: FrameType) -> None:
    stack = [f"{f.f_code.co_filename}:{f.f_lineno} {f.f_code.co_name}" for f in frames_of(frame)]
    thread = threading.current_thread().name
    entry = {"call": name, "violations": violations, "thread": thread, "stack": stack}
    # One write: ranks of a job share the file.
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, json.dumps(entry).encode() + b"\n")
    finally:
        os.close(descriptor)


class Checker:
    """Says what is wrong with a call of torch's profiler.

    Args:
        main_thread: The thread that runs the program.

    Attributes:
        annotations: The annotations that are open.
    """

    def __init__(self, main_thread: int | None = None) -> None:
        self._main_thread = main_thread or threading.main_thread().ident
        self._started_on: int | None = None
        self.annotations = Annotations()

    def find_violations(self, name: str, frame: FrameType) -> list[str]:
        """Return what forbids a call of a profiler's function from a frame.

        Args:
            name: The function.
            frame: Its caller.
        """
        frames = list(frames_of(frame))
        if not is_profkit_call(frames):
            return []
        thread = threading.get_ident()
        if _is_measurement(frames) and thread != self._main_thread:
            return []

        violations = find_open(frames)
        # The one around an optimizer's step is told by its frame.
        names = (name for name in self.annotations.names if not name.startswith(_STEP))
        violations += [f"the annotation {name}" for name in names]
        if thread != self._main_thread and not any(map(_is_program_frame, frames)):
            violations.append("a thread that does not run the program")
        if name == "_enable_profiler":
            self._started_on = thread
        elif name == "_disable_profiler":
            if self._started_on not in (None, thread):
                violations.append("another thread than that of the start")
            self._started_on = None
        return violations


def frames_of(frame: FrameType | None) -> Iterator[FrameType]:
    """Iterate over a frame and its callers, innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_profkit_call(frames: Sequence[FrameType]) -> bool:
    """Return whether profkit, and not the program, is the profiler's caller outside of torch."""
    files = (frame.f_code.co_filename for frame in frames)
    caller = next((file for file in files if _TORCH not in file and not _is_helper(file)), "")
    return caller.startswith(PROFKIT)


def find_open(frames: Sequence[FrameType]) -> list[str]:
    """Return what is open on a stack of this thread that forbids to start or stop a profiler."""
    checks: dict[str, Callable[[FrameType], bool]] = {
        "a signal handler": _is_signal_handler,
        "a profile or trace function": _is_profile_function,
        "a finalizer": _is_finalizer,
        "a callback of a weak reference": _is_weakref_callback,
        "a callback of the garbage collector": _is_gc_callback,
        "an optimizer's step": _is_optimizer_step,
        "an operator": _is_operator,
        "a compilation": _is_compiler,
    }
    violations = [what for what, is_open in checks.items() if any(map(is_open, frames))]
    if _is_in_backward():
        violations.append("a backward pass")
    if _is_compiling() and "a compilation" not in violations:
        violations.append("a compilation")
    if _is_within_trace_function() and "a profile or trace function" not in violations:
        violations.append("a profile or trace function")

    return violations


def _is_helper(file: str) -> bool:
    """Return whether a file only passes calls on: this one, contextlib's, profkit's wrappers."""
    return file.startswith((_HERE, _WRAPPERS)) or file.endswith(f"{os.sep}contextlib.py")


def _is_measurement(frames: Sequence[FrameType]) -> bool:
    return any(
        frame.f_code.co_name == _MEASUREMENT and frame.f_code.co_filename.startswith(PROFKIT)
        for frame in frames
    )


def _is_program_frame(frame: FrameType) -> bool:
    """Return whether a frame is of the program: not of profkit, torch, or Python itself."""
    file = frame.f_code.co_filename
    libraries = (PROFKIT, "site-packages", f"{os.sep}lib{os.sep}python", "<frozen")
    return not any(part in file for part in libraries) and not _is_helper(file)


def _arguments(frame: FrameType) -> list[Any]:
    """Return the positional arguments of a function that the interpreter may call by itself.

    The snapshot of the local variables that Python 3.11 and 3.12 make for this is emptied at once:
    otherwise it keeps the program's objects alive until the function returns.
    """
    code = frame.f_code
    n_arguments = code.co_argcount
    has_others = bool(code.co_flags & _VARARGS)
    if not code.co_flags & _OPTIMIZED or n_arguments > _MAX_ARGUMENTS + has_others:
        return []
    if not n_arguments and not has_others:
        return []
    variables = frame.f_locals
    values = [variables.get(name) for name in code.co_varnames[:n_arguments]]
    if has_others:
        values += variables.get(code.co_varnames[n_arguments + code.co_kwonlyargcount], ())
    if isinstance(variables, dict):
        variables.clear()
    return values[:_MAX_ARGUMENTS]


_OPTIMIZED: Final = 0x1
_VARARGS: Final = 0x4


def _is_signal_handler(frame: FrameType) -> bool:
    """Return whether the interpreter called this with a signal and the interrupted frame."""
    values = _arguments(frame) if frame.f_back is not None else []
    return any(
        isinstance(number, int) and values[i + 1] is frame.f_back and _is_signal(number)
        for i, number in enumerate(values[:-1])
    )


def _is_signal(number: int) -> bool:
    return not isinstance(number, bool) and number in signal.valid_signals()


def _is_profile_function(frame: FrameType) -> bool:
    """Return whether the interpreter called this with a frame, an event, and its argument."""
    values = _arguments(frame) if frame.f_back is not None else []
    return any(
        value is frame.f_back and isinstance(values[i + 1], str)
        for i, value in enumerate(values[:-1])
    )


def _is_finalizer(frame: FrameType) -> bool:
    return frame.f_code.co_name == "__del__"


def _is_weakref_callback(frame: FrameType) -> bool:
    """Return whether this was called with a weak reference to an object that is gone."""
    if frame.f_code is weakref.finalize.__call__.__code__:
        return _arguments(frame)[1] is not None
    if _is_helper(frame.f_code.co_filename):
        return False
    return any(isinstance(value, weakref.ref) and value() is None for value in _arguments(frame))


def _is_gc_callback(frame: FrameType) -> bool:
    codes = (code_of(callback) for callback in gc.callbacks)
    return any(code is frame.f_code for code in codes)


def code_of(function: object) -> CodeType | None:
    """Return the code of a function, a bound method, a partial, or an object that is called."""
    function = getattr(function, "func", function)
    call = getattr(type(function), "__call__", None)  # noqa: B004  (its code, not whether)
    codes = (getattr(candidate, "__code__", None) for candidate in (function, call))
    return next((code for code in codes if isinstance(code, CodeType)), None)


def _is_optimizer_step(frame: FrameType) -> bool:
    """Return whether this is torch's wrapper of an optimizer's step, or the step itself."""
    code = frame.f_code
    if code in _step_wrappers():
        return True
    if code.co_name != "step":
        return False
    values = _arguments(frame)
    optimizer = _loaded("torch.optim", "Optimizer")
    if optimizer is not None and values and isinstance(values[0], optimizer):
        return True
    is_schedule = code.co_filename.endswith("lr_scheduler.py")
    return _OPTIMIZER_FILES in code.co_filename and not is_schedule


def _step_wrappers() -> set[CodeType]:
    """Return the code of the function that torch puts around each optimizer's step."""
    optimizer = _loaded("torch.optim", "Optimizer")
    if optimizer is None:
        return set()
    constants = optimizer.profile_hook_step.__code__.co_consts
    return {constant for constant in constants if isinstance(constant, CodeType)}


def _is_operator(frame: FrameType) -> bool:
    """Return whether an operator is open that Python code implements, or that calls Python code."""
    code = frame.f_code
    if code.co_name == "<module>":
        return False
    if code.co_name == "__torch_dispatch__":
        return True
    if code.co_filename.endswith(_FUNCTION_FILE):
        return code.co_name.startswith("apply")
    if code.co_name in _FUNCTION_METHODS and _is_of_autograd(code):
        return True
    return any(part in code.co_filename for part in _OPERATOR_FILES)


def _is_of_autograd(code: CodeType) -> bool:
    """Return whether this is a method of a function of autograd, and not of a module."""
    function = _loaded("torch.autograd", "Function")
    kinds = [] if function is None else [function]
    for kind in kinds:
        kinds += type.__subclasses__(kind)
        method = vars(kind).get(code.co_name)
        while method is not None:
            if code_of(method) is code:
                return True
            # A static method, or a decorator of torch's.
            method = getattr(method, "__wrapped__", None)
    return False


def _is_compiler(frame: FrameType) -> bool:
    """Return whether the compiler runs, and is not merely imported."""
    code = frame.f_code
    return code.co_name != "<module>" and code.co_filename.endswith(_COMPILER_FILES)


def _is_in_backward() -> bool:
    """Return whether this thread runs a backward pass."""
    task = _loaded("torch._C", "_current_graph_task_id")
    return task is not None and task() != -1


def _is_compiling() -> bool:
    """Return whether this thread compiles or traces."""
    context = _loaded("torch._guards", "CompileContext")
    if context is not None and context.try_get() is not None:
        return True
    is_compiling = _loaded("torch.compiler", "is_compiling")
    return is_compiling is not None and bool(is_compiling())


def _loaded(module: str, name: str) -> Any:  # noqa: ANN401
    """Return an attribute of a module that is imported already, or None."""
    return getattr(sys.modules.get(module), name, None)


def _is_within_trace_function() -> bool:
    """Return whether a profile or trace function is open, one that is written in C included.

    The interpreter calls no trace function meanwhile: ``repr()`` of an object within torch's own
    profile function is told by that alone.
    """
    previous = sys.gettrace()
    traced: list[str] = []
    sys.settrace(lambda _frame, event, _argument: traced.append(event))
    try:
        _do_nothing()
    finally:
        sys.settrace(previous)
    return not traced


def _do_nothing() -> None:
    """Be called, so that a trace function is."""
