"""torch.profiler: one recording that starts, stops and is exported.

The only module that uses torch's profiler.
"""

import contextlib
import ctypes
import os
import sys
import threading
import time
import warnings
from collections.abc import Container, Iterator
from functools import cache
from inspect import iscode
from pathlib import Path
from types import CodeType
from typing import Any, Final

from profkit.capture.process import devices, program_profilers
from profkit.capture.process.cpu_time import CpuClock
from profkit.capture.process.imported_code import imported_code
from profkit.capture.recording.options import Options
from profkit.errors import CaptureError
from profkit.model.capture_info import CpuTime
from profkit.model.torch_names import OPTIMIZER_STEP

_SILENT: Final = 6
"""Above Kineto's highest level, at which torch 2.13 prints two debug lines per recording."""
_LEVEL: Final = "_ZN9libkineto6Logger14severityLevel_E"
"""libkineto's ``Logger::severityLevel_``."""

_TRACER_WARNING: Final = r"(?s).*\(Triggered internally at \S*/csrc/profiler/"
_COLLECTIVES_END_S: Final = 0.005
"""Above the microseconds that it takes a thread to end a region, and the inaccuracy of clocks."""
_unexamined: Final[list["ProfilerRecording"]] = []
"""Stopped recordings that were not searched yet for what they left open. That takes a microsecond
per event, and is needed only before another recording."""
_left_open: Final[set[bool]] = set()
"""The kinds of recording, of all threads or not, of which one stopped inside an operator or region.

What was open then writes its end into the memory of that recording, which is free by now, if
another one of the same kind runs meanwhile; torch keeps the two kinds in different places. So no
more of this kind are made.

Source: ``onFunctionExit`` in ``torch/csrc/autograd/profiler_kineto.cpp``, and Valgrind's report of
such a write with torch 2.13.
"""
_in_optimizer: Final[set[bool]] = set()
"""The same where nothing but torch's own regions around ``step()`` of optimizers was open.

Their end is known, since a frame of each is on its thread's stack. Until then, no more are made:
L-BFGS calls the whole model in there.
"""


def can_record(*, all_threads: bool = False) -> bool:
    """Whether a further recording is harmless for the program.

    Args:
        all_threads: As for :class:`ProfilerRecording`.
    """
    return _harmless_kind(all_threads=all_threads) is not None


def can_trace_calls() -> bool:
    """Whether a recording with stacks is harmless for the program.

    In each call of what ``nn.Module.__call__`` was at the first of them, torch's tracer reads the
    local variable ``self`` without a check. In a program that has put a function of its own there,
    with another name for the module, that is a segmentation fault.

    Source: ``recordPyCall`` in ``torch/csrc/autograd/profiler_python.cpp``; seen with torch 2.13.
    """
    from torch.nn import Module

    code = getattr(Module.__call__, "__code__", None)
    return iscode(code) and code.co_argcount > 0 and code.co_varnames[0] == "self"


def _open_kinds() -> set[bool]:
    """The kinds of which no more are made now, with all recordings so far."""
    while _unexamined:
        _unexamined.pop().examine()
    if _in_optimizer and not _is_in_optimizer():
        _in_optimizer.clear()
    return _left_open | _in_optimizer


def _is_in_optimizer() -> bool:
    """Whether any thread is inside an optimizer's ``step()``, or may be.

    Source: ``Optimizer.profile_hook_step``, whose inner function opens and ends the region.
    """
    from torch.optim import Optimizer

    from profkit.capture.process.objects import running_frames

    steps = [code for code in Optimizer.profile_hook_step.__code__.co_consts if iscode(code)]
    return not steps or any(frame.f_code in steps for frame in running_frames())


def _harmless_kind(*, all_threads: bool) -> bool | None:
    """The kind that a recording can have, or None.

    Recordings of all threads leave the other kind to those of one thread, unless it can have both
    again once an optimizer's step has ended.
    """
    of_all, opened = _all_threads() is not None, _open_kinds()
    kinds: tuple[bool, ...] = (False, of_all)
    if all_threads:
        kinds = (of_all,) if of_all in _left_open else (of_all, False)
    return next((kind for kind in kinds if kind not in opened), None)


class ProfilerRecording:
    """One start and stop of torch's profiler.

    Args:
        options: What to record.
        stacks: Whether to record every Python call too.
        device: Whether devices are recorded, if the options say so.
        all_threads: Whether operators of all threads are recorded, where this version of torch can.
            By default it records those of the thread that starts it, and of backward passes; but
            all if an earlier recording of one thread stopped inside a region.
        is_alone: Whether nothing of the program runs in this thread until the recording stops, so
            that nothing that is open ends meanwhile. It is of this thread alone.
        on_python_profiler: Called before the program sets a profile function while stacks are
            recorded; must stop this recording, which would remove it.

    Raises:
        CaptureError: If :func:`can_record` is false, or nothing would be recorded.

    Attributes:
        start_ns: Time that starting took.
        stop_ns: Time that stopping took.
        window_ns: Time between the two.
        cpu: Processor time spent between the two, or None.
        stop_cpu_ns: Processor time of this thread that stopping took.
        closed: Names of regions that the caller opens and always ends before it stops this.
    """

    def __init__(
        self,
        options: Options,
        *,
        stacks: bool,
        device: bool = True,
        all_threads: bool = False,
        is_alone: bool = False,
        on_python_profiler: program_profilers.Listener | None = None,
    ) -> None:
        import torch

        kind = False if is_alone else _harmless_kind(all_threads=all_threads)
        if kind is None:
            raise CaptureError(
                "Regions of the program were open when earlier recordings stopped.",
                "End each `record_function` within the step.",
            )
        self.closed: set[str] = set()
        self._is_alone = is_alone
        self._is_of_all = kind
        self.stacks = stacks
        self.start_ns = 0
        self.stop_ns = 0
        self.window_ns = 0
        self.cpu: CpuTime | None = None
        self.stop_cpu_ns = 0
        self.is_started = False
        self.is_stopped = False
        self._began_ns = 0
        self._stopped_at_ns = 0
        self._cpu_clock: CpuClock | None = None
        self._is_prepared = False
        self._watching = contextlib.ExitStack()
        self._imported_code: list[CodeType] = []
        self._on_python_profiler = on_python_profiler if stacks else None
        with program_profilers.own():
            self._profile: Any = torch.profiler.profile(
                activities=_activities(ops=options.ops, device=options.device and device),
                record_shapes=options.shapes,
                profile_memory=options.memory,
                with_stack=stacks,
                with_flops=options.flops,
                experimental_config=_all_threads() if self._is_of_all else None,
            )

    def prepare(self) -> None:
        """Prepare the profiler without recording, so that :meth:`start` is quick."""
        _require_no_profiler()
        began_ns = time.perf_counter_ns()
        with (
            program_profilers.own(),
            _kineto_silent(),
            _without_inductor(),
            _without_cycle_warning(),
        ):
            self._profile.prepare_trace()
        self._is_prepared = True
        self.start_ns += time.perf_counter_ns() - began_ns

    def start(self) -> None:
        """Begin to record.

        Raises:
            CaptureError: If another profiler is running.
        """
        if not self._is_prepared:
            self.prepare()
        began_ns = time.perf_counter_ns()
        with contextlib.ExitStack() as watching:
            # Before the start, or else what this imports is recorded.
            if self._on_python_profiler is not None:
                watching.enter_context(program_profilers.watching_python(self._on_python_profiler))
            if self.stacks:
                self._imported_code = watching.enter_context(imported_code())
            with program_profilers.own(), _kineto_silent():
                self._profile.start_trace()
            self._watching = watching.pop_all()
        self.is_started = True
        self._cpu_clock = CpuClock()
        self._began_ns = time.perf_counter_ns()
        self.start_ns += self._began_ns - began_ns

    def stop(self) -> None:
        """Wait for every device in use, then stop and collect the events, unless that was done."""
        if not self.is_started or self.is_stopped:
            return
        devices.synchronize()
        ended_ns = time.perf_counter_ns()
        self.cpu = None if self._cpu_clock is None else self._cpu_clock.read()
        self.is_stopped = True
        self._watching.close()
        _let_collectives_end()
        began_ns, self._stopped_at_ns = time.thread_time_ns(), time.time_ns()
        _ignore_tracer_warnings()
        with program_profilers.own(), _kineto_silent():
            self._profile.stop_trace()
        self.stop_cpu_ns = time.thread_time_ns() - began_ns
        if not self._is_alone:
            _unexamined.append(self)
        self.window_ns = ended_ns - self._began_ns
        self.stop_ns = time.perf_counter_ns() - ended_ns

    def stop_cancelled(self) -> None:
        """Stop after another profiler has cancelled this one and ended; nothing was recorded.

        Source: seen with torch 2.13: stopping a cancelled profiler is a segmentation fault, but
        not if it is prepared again before.
        """
        with program_profilers.own(), _kineto_silent():
            self._watching.close()
            self._profile.profiler._prepare_trace()  # noqa: SLF001  (torch has no public way)
            self._profile.stop_trace()
        self.is_stopped = True

    @property
    def torch_profiler(self) -> object:
        """Torch's own object, once prepared."""
        return self._profile.profiler

    def export(self, path: Path) -> None:
        """Write the events as JSON text.

        Raises:
            CaptureError: If torch could not write it.
        """
        self._profile.export_chrome_trace(str(path))
        if not path.is_file():
            raise CaptureError(
                f"torch could not write its trace to {path.parent}.",
                "Is the disk full? Set TMPDIR to another folder.",
            )

    def examine(self) -> None:
        """Search what was open at the stop: no more of this kind are made if anything was."""
        for name in _left_open_in(self.tree(), self._stopped_at_ns, self.closed):
            if not OPTIMIZER_STEP.match(name):
                _left_open.add(self._is_of_all)
                break
            _in_optimizer.add(self._is_of_all)

    def release(self, *, is_last: bool = False) -> None:
        """Free the events: hundreds of MiB, which torch's reference cycles would retain.

        Args:
            is_last: Whether the program has ended. Without the search, something counts as open.

        Source: ``torch.profiler.profile`` has bound methods of itself in ``action_map``.
        """
        if self in _unexamined:
            _unexamined.remove(self)
            if is_last:
                _left_open.add(self._is_of_all)
            else:
                self.examine()
        self._profile.profiler = None
        self._imported_code = []

    def tree(self) -> list[Any]:
        """The roots of torch's event tree, with every call below its caller."""
        roots: list[Any] = self._profile.profiler.kineto_results.experimental_event_tree()
        return roots

    def n_events(self) -> int:
        """The number of recorded events."""
        return len(self._profile.profiler.kineto_results.events())

    def thread_ids(self, wanted: set[int]) -> dict[int, int]:
        """From torch's own thread numbers to those of the operating system.

        Args:
            wanted: The former.
        """
        found: dict[int, int] = {}
        if not wanted:
            return found
        for event in self._profile.profiler.kineto_results.events():
            thread = event.start_thread_id()
            is_new = thread not in found
            found[thread] = event.device_resource_id()
            if is_new and wanted <= found.keys():
                break
        return found


def _let_collectives_end() -> None:
    """Wait for the ends of regions of collectives that the program has waited for already.

    Source: ``ProcessGroupGloo::AsyncWork::finishWorkGloo`` completes the future, on which DDP goes
    on, before its thread ends the region.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        time.sleep(_COLLECTIVES_END_S)


def _left_open_in(roots: list[Any], stopped_at_ns: int, closed: Container[str]) -> Iterator[str]:
    """The operators and regions of the program that were open when its recording stopped.

    torch gives them the end of what they are in: a Python call that may have returned, such as
    ``__enter__``, or a region that is closed although what began in it is not; otherwise the time
    of the stop. That is the system's time. All others are converted from the processor's counter,
    and may be off by a millisecond. What is within an operator of the program is closed if that is.
    torch 2.11 instead gives those without an end in a Python call the lowest integer.

    Args:
        roots: The event tree.
        stopped_at_ns: The system's time before the stop.
        closed: Names of regions that are closed, whatever is still open in them.
    """
    from torch._C._profiler import _EventType

    calls = (_EventType.PyCall, _EventType.PyCCall)
    pending = [(event, stopped_at_ns, False) for event in roots]
    while pending:
        event, outer_end_ns, is_within = pending.pop()
        is_op, end_ns = event.tag == _EventType.TorchOp, event.end_time_ns
        has_end_of_outer = end_ns == outer_end_ns if is_within else end_ns >= stopped_at_ns
        is_open = is_op and (has_end_of_outer or end_ns < 0)
        if is_open and (is_within or event.name not in closed):
            yield event.name
        if is_open or event.tag in calls or (is_op and event.name in closed):
            pending += [(child, end_ns, True) for child in event.children]


def _ignore_tracer_warnings() -> None:
    """Have warnings of torch's tracer ignored from now on: they are not the program's.

    It warns of each operator that is open at the stop. Where the program called that operator, as
    with a dispatch mode, torch issues its warnings once it has returned, as if it were the one that
    warns. In a program that turns warnings into errors, it fails.

    Source: ``PyWarningHandler`` in ``torch/csrc/Exceptions.h``; seen with torch 2.13.
    """
    warnings.filterwarnings("ignore", message=_TRACER_WARNING)


class region(contextlib.AbstractContextManager[None]):  # noqa: N801  (as ``record_function``)
    """A region of that name in the recording.

    It begins and ends with operators, which ``TorchFunctionMode`` and ``TorchDispatchMode`` of the
    program do not see.
    """

    def __init__(self, name: str) -> None:
        import torch

        self._region = torch.profiler.record_function(name)
        # torch has no public way.
        self._no_function_mode = torch._C.DisableTorchFunction  # noqa: SLF001
        self._no_dispatch_mode = torch._C._DisableTorchDispatch  # noqa: SLF001

    def __enter__(self) -> None:
        with self._no_function_mode(), self._no_dispatch_mode():
            self._region.__enter__()

    def __exit__(self, *_exception: object) -> None:
        with self._no_function_mode(), self._no_dispatch_mode():
            self._region.__exit__(None, None, None)


def _all_threads() -> Any:  # noqa: ANN401
    """The setting that records all threads; None where this version of torch has none.

    Source: ``torch/csrc/profiler/orchestration/observer.h`` (``ExperimentalConfig``).
    """
    try:
        from torch._C._profiler import _ExperimentalConfig

        return _ExperimentalConfig(profile_all_threads=True)
    except (ImportError, TypeError):
        return None


def _activities(*, ops: bool, device: bool) -> list[Any]:
    from torch.profiler import ProfilerActivity, supported_activities

    supported = supported_activities()
    found: list[Any] = [ProfilerActivity.CPU] if ops else []
    if device:
        for name in ("CUDA", "XPU", "MTIA", "HPU", "PrivateUse1"):
            activity = getattr(ProfilerActivity, name, None)
            if activity in supported and _is_usable(name.lower()):
                found.append(activity)
    if not found:
        raise CaptureError(
            "ops=False records device work only, and torch finds no device.",
            "Record operators too, or run: profkit doctor",
        )
    return found


def _is_usable(device: str) -> bool:
    import torch

    module = getattr(torch, device, None)
    return module is None or bool(module.is_available())


def _require_no_profiler() -> None:
    if program_profilers.is_recording():
        raise CaptureError(
            "Another torch profiler is running, and torch allows one at a time.",
            "Stop it first, or use only one of the two.",
        )


@contextlib.contextmanager
def _kineto_silent() -> Iterator[None]:
    """Keep Kineto's debug lines off stderr, unless the user has set a log level.

    The level is restored, so that the program's own profilers print what they always do. Where it
    cannot be reached it is set for the whole process: Kineto reads it once, when the first profiler
    is prepared.

    Source: libkineto reads ``KINETO_LOG_LEVEL`` in ``libkineto_init``, and compares the level of
    each message with ``Logger::severityLevel_``.
    """
    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    level = _kineto_level()
    if level is None:
        os.environ["KINETO_LOG_LEVEL"] = str(_SILENT)
        try:
            yield
        finally:
            os.environ.pop("KINETO_LOG_LEVEL", None)
        return
    before, level.value = level.value, _SILENT
    try:
        yield
    finally:
        if level.value == _SILENT:  # else Kineto has set its own, with the first profiler
            level.value = before


@cache
def _kineto_level() -> Any:  # noqa: ANN401  (a C integer, or None)
    """Kineto's log level in this process, or None where torch's library does not show it."""
    import torch

    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    with contextlib.suppress(OSError, ValueError, AttributeError):
        loaded = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return ctypes.c_int.in_dll(loaded, _LEVEL)
    return None


@contextlib.contextmanager
def _without_inductor() -> Iterator[None]:
    """Keep torch's profiler from importing ``torch._inductor``: 800 modules, 1.2 s of CPU time.

    It asks Inductor whether that uses CUDA graphs. One that the program has not imported has no
    settings but its environment variable. Other threads may import it meanwhile.

    Source: ``torch.profiler._KinetoProfile.prepare_trace``; ``torch.__getattr__`` imports
    ``_inductor`` on first access.
    """
    import torch

    original = torch.__dict__.get("__getattr__")
    if (
        original is None
        or "torch._inductor" in sys.modules
        or os.environ.get("TORCHINDUCTOR_CUDAGRAPHS") == "1"
    ):
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
def _without_cycle_warning() -> Iterator[None]:
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


def disable_in_child(*, recording: bool) -> None:
    """Disable the copied profiler in a forked child, and let the child exit without destructors.

    The child has a copy of the profiler's state but none of its threads. Its operators and calls
    would be recorded forever, and libkineto's destructors would wait for those threads at a normal
    exit, as they do after any use of torch's profiler.

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
