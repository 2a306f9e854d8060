"""torch.profiler: one recording that starts, stops and is exported.

The only module that uses torch's profiler.
"""

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from profkit.capture import devices
from profkit.capture.cpu_time import CpuClock
from profkit.capture.options import Options
from profkit.errors import CaptureError
from profkit.model.capture_info import CpuTime

_SILENT: Final = "6"
"""Above Kineto's highest level, at which torch 2.13 prints two debug lines per recording."""


class ProfilerRecording:
    """One start and stop of torch's profiler.

    Args:
        options: What to record.
        stacks: Whether to record every Python call too.
        device: Whether devices are recorded, if the options say so.
        all_threads: Whether operators of all threads are recorded, where this version of torch can.
            By default it records those of the thread that starts it, and of backward passes.
        on_other_profiler: Called before the program starts a profiler; must stop this one.

    Attributes:
        start_ns: Time that starting took.
        stop_ns: Time that stopping took.
        window_ns: Time between the two.
        cpu: Processor time spent between the two, or None.
    """

    def __init__(
        self,
        options: Options,
        *,
        stacks: bool,
        device: bool = True,
        all_threads: bool = False,
        on_other_profiler: Callable[[], None] | None = None,
    ) -> None:
        import torch

        self.stacks = stacks
        self.start_ns = 0
        self.stop_ns = 0
        self.window_ns = 0
        self.cpu: CpuTime | None = None
        self.is_started = False
        self.is_stopped = False
        self._began_ns = 0
        self._cpu_clock: CpuClock | None = None
        self._is_prepared = False
        self._on_other_profiler = on_other_profiler
        self._stop_watching: Callable[[], None] | None = None
        self._profile: Any = torch.profiler.profile(
            activities=_activities(ops=options.ops, device=options.device and device),
            record_shapes=options.shapes,
            profile_memory=options.memory,
            with_stack=stacks,
            with_flops=options.flops,
            experimental_config=_all_threads() if all_threads else None,
        )

    def prepare(self) -> None:
        """Prepare the profiler without recording, so that :meth:`start` is quick."""
        _require_no_profiler()
        began_ns = time.perf_counter_ns()
        with _kineto_silent():
            self._profile.prepare_trace()
        self._is_prepared = True
        if self._on_other_profiler is not None:
            self._stop_watching = _watch_other_profilers(self._on_other_profiler)
        self.start_ns += time.perf_counter_ns() - began_ns

    def start(self) -> None:
        """Begin to record.

        Raises:
            CaptureError: If another profiler is running.
        """
        if not self._is_prepared:
            self.prepare()
        began_ns = time.perf_counter_ns()
        self._profile.start_trace()
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
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None
        self._profile.stop_trace()
        self.window_ns = ended_ns - self._began_ns
        self.stop_ns = time.perf_counter_ns() - ended_ns

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

    def release(self) -> None:
        """Free the events: hundreds of MiB, which torch's reference cycles would retain.

        Source: ``torch.profiler.profile`` has bound methods of itself in ``action_map``.
        """
        self._profile.profiler = None

    def tree(self) -> list[Any]:
        """The roots of torch's event tree, with every call below its caller."""
        roots: list[Any] = self._profile.profiler.kineto_results.experimental_event_tree()
        return roots

    def n_events(self) -> int:
        """The number of recorded events."""
        return len(self._profile.profiler.kineto_results.events())

    def thread_ids(self) -> dict[int, int]:
        """From torch's own thread numbers to those of the operating system."""
        events = self._profile.profiler.kineto_results.events()
        return {event.start_thread_id(): event.device_resource_id() for event in events}


def _watch_other_profilers(on_start: Callable[[], None]) -> Callable[[], None]:
    """Call a function before this thread starts another profiler: torch allows one per process.

    Returns:
        A function that stops watching.
    """
    import torch

    kind: Any = torch.autograd.profiler.profile
    original = getattr(kind, "_prepare_trace", None)  # all starts go through it
    if original is None:
        return lambda: None
    thread = threading.get_ident()

    def stop() -> None:
        kind._prepare_trace = original  # noqa: SLF001

    def prepare_trace(other: Any) -> Any:  # noqa: ANN401
        if threading.get_ident() == thread:
            stop()
            on_start()
        return original(other)

    kind._prepare_trace = prepare_trace  # noqa: SLF001
    return stop


def region(name: str) -> contextlib.AbstractContextManager[Any]:
    """A region of that name in the recording."""
    import torch

    context: contextlib.AbstractContextManager[Any] = torch.profiler.record_function(name)
    return context


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
    import torch

    if (
        getattr(torch.autograd.profiler, "_is_profiler_enabled", False)
        or torch._C._autograd._profiler_enabled()  # noqa: SLF001  (torch has no public function)
    ):
        raise CaptureError(
            "Another torch profiler is running, and torch allows one at a time.",
            "Stop it first, or use only one of the two.",
        )


@contextlib.contextmanager
def _kineto_silent() -> Iterator[None]:
    """Keep Kineto's debug lines off stderr, unless the user has set a log level.

    Kineto reads its level once, when the first profiler of the process is prepared.

    Source: libkineto reads ``KINETO_LOG_LEVEL`` in ``libkineto_init``.
    """
    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["KINETO_LOG_LEVEL"] = _SILENT
    try:
        yield
    finally:
        os.environ.pop("KINETO_LOG_LEVEL", None)


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
