"""torch.profiler: one recording that is prepared, started, muted, stopped and exported.

The only module that makes, starts and stops torch's profiler.
"""

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from enum import IntEnum, auto
from pathlib import Path
from types import CodeType
from typing import IO, Any, Final

from profkit.capture.process import devices, environment, program_profilers
from profkit.capture.process.files import count_events
from profkit.capture.process.imported_code import imported_code
from profkit.capture.process.torch_features import all_threads_setting
from profkit.capture.recording import event_tree, harmless_kinds, quiet_profiler
from profkit.capture.recording.activities import choose_activities, toggled_activities
from profkit.capture.recording.harmless_kinds import RecordingKind
from profkit.capture.recording.options import Options
from profkit.capture.recording.recorded_window import RecordedWindow, end_window_at
from profkit.dataclass import dataclass
from profkit.errors import CaptureError
from profkit.model.capture_info import CpuTime
from profkit.model.torch_names import MEMORY

_COLLECTIVES_END_S: Final = 0.005
"""Above the microseconds that it takes a thread to end a region, and the inaccuracy of clocks."""


class ProfilerState(IntEnum):
    """How far a recording has come; a later state is greater."""

    NEW = auto()
    PREPARED = auto()
    STARTED = auto()
    MUTED = auto()
    STOPPED = auto()


@dataclass
class ProfilerCost:
    """What torch's profiler costs beside the window.

    Attributes:
        start_ns: Time that preparing and starting took.
        stop_ns: Time that stopping took.
        stop_cpu_ns: Processor time of the recording's thread that stopping took.
        n_exported: Events that were exported at the stop; 0 if they are exported later.
    """

    start_ns: int = 0
    stop_ns: int = 0
    stop_cpu_ns: int = 0
    n_exported: int = 0


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
        CaptureError: If no kind of recording is harmless, or nothing would be recorded.

    Attributes:
        stacks: Whether every Python call is recorded too.
        kind: Which threads are recorded.
        cost: What starting and stopping took.
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

        self.stacks = stacks
        self.kind = RecordingKind.ALONE if is_alone else _require_kind(all_threads=all_threads)
        self.cost = ProfilerCost()
        self.closed: set[str] = set()
        self._exported: IO[bytes] | None = None
        self._state = ProfilerState.NEW
        self._window: RecordedWindow | None = None
        # Another thread may mute a recording while its own one stops it.
        self._muting = threading.Lock()
        self._watching = contextlib.ExitStack()
        self._imported_code: list[CodeType] = []
        self._on_python_profiler = on_python_profiler if stacks else None

        is_of_all = self.kind is RecordingKind.ALL_THREADS
        with program_profilers.own():
            self._profile: Any = torch.profiler.profile(
                activities=choose_activities(ops=options.ops, device=options.device and device),
                record_shapes=options.shapes,
                profile_memory=options.memory,
                with_stack=stacks,
                with_flops=options.flops,
                experimental_config=all_threads_setting() if is_of_all else None,
            )

    @property
    def is_started(self) -> bool:
        """Return whether it was started; it may have been stopped since."""
        return self._state >= ProfilerState.STARTED

    @property
    def records_devices(self) -> bool:
        """Return whether the work of devices is recorded too."""
        return set(self._profile.activities) != set(choose_activities(ops=True, device=False))

    @property
    def is_muted(self) -> bool:
        """Return whether it was muted, so that its last part has no operators."""
        return self._window is not None and self._window.muted_at_ns > 0

    @property
    def is_stopped(self) -> bool:
        """Return whether it was stopped."""
        return self._state is ProfilerState.STOPPED

    @property
    def window_ns(self) -> int:
        """Return the time from the start until it was muted or stopped; 0 before."""
        return 0 if self._window is None else self._window.length_ns

    @property
    def cpu(self) -> CpuTime | None:
        """Return the processor time from the start until it was muted or stopped, or None."""
        return None if self._window is None else self._window.cpu

    @property
    def torch_profiler(self) -> object:
        """Return torch's own object, once prepared."""
        return self._profile.profiler

    def prepare(self) -> None:
        """Prepare the profiler without recording, so that :meth:`start` is quick.

        Raises:
            CaptureError: If another profiler is running.
        """
        if program_profilers.is_recording():
            raise other_profiler_error()
        began_ns = time.perf_counter_ns()
        with (
            program_profilers.own(),
            quiet_profiler.without_debug_lines(),
            quiet_profiler.without_thread_error(),
            quiet_profiler.without_inductor(),
            quiet_profiler.without_cycle_warning(),
        ):
            self._profile.prepare_trace()
        self._state = ProfilerState.PREPARED
        self.cost.start_ns += time.perf_counter_ns() - began_ns

    def start(self) -> None:
        """Begin to record.

        Raises:
            CaptureError: If another profiler is running.
        """
        if self._state is ProfilerState.NEW:
            self.prepare()

        began_ns = time.perf_counter_ns()
        with contextlib.ExitStack() as watching:
            # Before the start, or else what this imports is recorded.
            if self._on_python_profiler is not None:
                watching.enter_context(program_profilers.watching_python(self._on_python_profiler))
            if self.stacks:
                self._imported_code = watching.enter_context(imported_code())
            with (
                program_profilers.own(),
                quiet_profiler.without_debug_lines(),
                quiet_profiler.without_inductor(),
                quiet_profiler.without_allocator_warning(),
            ):
                self._profile.start_trace()
            self._watching = watching.pop_all()

        self._state = ProfilerState.STARTED
        self._window = RecordedWindow()
        self.cost.start_ns += self._window.began_ns - began_ns

    def mute(self) -> None:
        """Collect no more operators from now on, until :meth:`stop`.

        Any thread may call it in a recording of all threads; in another one, its own thread alone.

        Source: ``torch.profiler.profile.toggle_collection_dynamic``. It removes the global callback
        of operators, under a lock: ``GlobalCallbackManager`` in
        ``aten/src/ATen/record_function.cpp``.
        """
        with self._muting:
            window = self._window
            if self._state is not ProfilerState.STARTED or window is None:
                return

            # torch warns of others that go on, though there are none, unless all are named.
            kinds = toggled_activities()
            self._profile.profiler.toggle_collection_dynamic(False, kinds)  # noqa: FBT003
            window.muted_at_ns = time.time_ns()
            window.end(time.perf_counter_ns())
            self._state = ProfilerState.MUTED

    def stop(self) -> None:
        """Wait for every device in use, then stop and collect the events, unless that was done."""
        window = self._window
        if window is None or self.is_stopped:
            return

        devices.synchronize()
        ended_ns = time.perf_counter_ns()
        with self._muting:
            if self._state is not ProfilerState.MUTED:
                window.end(ended_ns)
            self._state = ProfilerState.STOPPED
        self._watching.close()
        _let_collectives_end()

        began_cpu_ns, window.stopped_at_ns = time.thread_time_ns(), time.time_ns()
        quiet_profiler.ignore_tracer_warnings()
        with program_profilers.own(), quiet_profiler.without_debug_lines():
            self._profile.stop_trace()

        self.cost.stop_cpu_ns = time.thread_time_ns() - began_cpu_ns
        harmless_kinds.note_stop(self)
        self.cost.stop_ns = time.perf_counter_ns() - ended_ns

    def stop_cancelled(self) -> None:
        """Stop after another profiler has cancelled this one and ended; nothing was recorded.

        Source: seen with torch 2.13: stopping a cancelled profiler is a segmentation fault, but
        not if it is prepared again before.
        """
        with program_profilers.own(), quiet_profiler.without_debug_lines():
            self._watching.close()
            self._profile.profiler._prepare_trace()  # noqa: SLF001  (torch has no public way)
            self._profile.stop_trace()
        self._state = ProfilerState.STOPPED

    def keep_device_times(self) -> None:
        """Export the events now for :meth:`export`, if the times of devices could be lost.

        Kineto converts them from the processor's clock each time that it writes them, with what
        the profiler that stopped last has measured; before the start of that one they all are 0.

        Source: ``ApproximateClockToUnixTimeConverter::makeConverter`` of libkineto, whose result is
        global and set in ``KinetoThreadLocalState::finalizeTrace``. Measured with torch 2.11 on an
        H100: all kernels of a recording began at 0 and took 0, if it was exported after another.

        Raises:
            CaptureError: If torch could not write it.
        """
        if not self.records_devices or self._exported is not None:
            return
        with tempfile.TemporaryDirectory(prefix="profkit-") as scratch:
            text = Path(scratch) / "trace.json"
            self._export(text)
            self.cost.n_exported = count_events(text)
            self._exported = tempfile.TemporaryFile(prefix="profkit-")  # noqa: SIM115
            with text.open("rb") as exported:
                shutil.copyfileobj(exported, self._exported)

    def export(self, path: Path) -> None:
        """Write the events as JSON text.

        Raises:
            CaptureError: If torch could not write it.
        """
        if self._exported is None:
            self._export(path)
            return
        self._exported.seek(0)
        with path.open("wb") as copy:
            shutil.copyfileobj(self._exported, copy)

    def _export(self, path: Path) -> None:
        self._profile.export_chrome_trace(str(path))
        if not path.is_file():
            raise CaptureError(
                f"torch could not write its trace to {path.parent}.",
                "Is the disk full? Set TMPDIR to another folder.",
            )

        # The window of one thread's recording goes on: what its last step has begun ends after it
        # was muted.
        window = self._window
        if window is not None and window.muted_at_ns and self.kind is RecordingKind.ALL_THREADS:
            end_window_at(path, window.muted_at_ns)

    def release(self, *, is_last: bool = False) -> None:
        """Free the events: hundreds of MiB, which torch's reference cycles would retain.

        Args:
            is_last: Whether the program has ended. Without a search, something counts as open.

        Source: ``torch.profiler.profile`` has bound methods of itself in ``action_map``.
        """
        harmless_kinds.note_release(self, is_last=is_last)
        if self._exported is not None:
            self._exported.close()
            self._exported = None
        self._profile.profiler = None
        self._imported_code = []

    def tree(self) -> list[Any]:
        """Return the roots of torch's event tree, with every call below its caller."""
        roots: list[Any] = self._profile.profiler.kineto_results.experimental_event_tree()
        return roots

    def find_left_open(self) -> Iterator[str]:
        """Find the names of the program's operators and regions that were open at the stop."""
        stopped_at_ns = 0 if self._window is None else self._window.stopped_at_ns
        return event_tree.find_left_open(self.tree(), stopped_at_ns, self.closed)

    def operators_ns(self) -> int:
        """Return the time that this recording's own thread has spent in operators."""
        return event_tree.sum_operators_ns(self.tree(), self.closed)

    def count_events(self) -> int:
        """Count the recorded events, without those of devices, in some 2 µs each."""
        return event_tree.count(self.tree())

    def count_complete_events(self) -> int:
        """Count the events that a trace has durations of, in some 2 µs each."""
        events = self._profile.profiler.kineto_results.events()
        return sum(event.name() != MEMORY for event in events)

    def thread_ids(self, wanted: set[int]) -> dict[int, int]:
        """Return the operating system's ids of threads by torch's own numbers.

        Args:
            wanted: Torch's numbers; the result may have further ones.
        """
        ids: dict[int, int] = {}
        if not wanted:
            return ids
        for event in self._profile.profiler.kineto_results.events():
            thread = event.start_thread_id()
            is_new = thread not in ids
            ids[thread] = event.device_resource_id()
            # There may be a million events: end as soon as every thread is known.
            if is_new and wanted <= ids.keys():
                break
        return ids


def _require_kind(*, all_threads: bool) -> RecordingKind:
    kind = harmless_kinds.find_harmless_kind(all_threads=all_threads)
    if kind is None:
        raise CaptureError(
            "Regions of the program were open when earlier recordings stopped.",
            "End each `record_function` within the step.",
        )
    return kind


def other_profiler_error() -> CaptureError:
    """Return the error of a recording that would begin while the program has a profiler open."""
    return CaptureError(
        "Another torch profiler is running, and torch allows one at a time.",
        "Stop it first, or use only one of the two.",
    )


def _let_collectives_end() -> None:
    """Wait for the ends of regions of collectives that the program has waited for already.

    Source: ``ProcessGroupGloo::AsyncWork::finishWorkGloo`` completes the future, on which DDP goes
    on, before its thread ends the region.
    """
    if environment.is_distributed():
        time.sleep(_COLLECTIVES_END_S)
