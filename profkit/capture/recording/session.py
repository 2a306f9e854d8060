"""One capture from start to file: its profilers are started, stopped and written here.

A session never raises into the user's program: an error becomes one warning and ends the session.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from profkit.capture.process import console, program_profilers, signals
from profkit.capture.process.compiling import is_program_paused
from profkit.capture.recording import profiler
from profkit.capture.recording.options import Options
from profkit.capture.recording.overhead import StepTimes
from profkit.capture.recording.recording_writer import RecordingWriter
from profkit.capture.recording.schedule import Phase, Schedule
from profkit.capture.recording.step_limit import StepLimit
from profkit.errors import CaptureError
from profkit.model.capture_info import StepKind
from profkit.model.torch_names import STEP_PREFIX
from profkit.readers.process_memory import release_free_memory

_MAX_WAIT_S: Final = 2.0
"""How long a profiler of another thread waits until this thread has ended its recording: the
thread may run a long operator meanwhile."""
_MAX_WAIT_FOR_END_S: Final = 60.0
"""The same once the thread is ending it."""
_WAKE_AFTER_S: Final = 0.1
OTHER_PROFILER: Final = "another profiler"
TIME_IS_UP: Final = "the time limit"
"""What ends a recording while the program goes on."""

spent_ns: int = 0
"""Processor time that all sessions of this process took in their own methods."""

_LARGE_NS: Final = 50_000_000
"""Processor time of stopping a recording with so many events that they need no counting."""


class Session:
    """One outermost ``profkit.trace`` block, or one recorded loop.

    Args:
        schedule: Which steps to record, or None for the whole block.
        first_step: The number of the first step, from 0: more where other ranks have begun before.

    Attributes:
        pid: The process that opened it; a forked child does not touch it.
        thread: The thread that opened it.
        is_busy: Whether it is inside one of its own methods, so that a signal must wait.
        made_way: Whether it ended early for a profiler of the program.
        limit: Ends the recording of steps where it would cost too much, or None.
        is_shared: Whether other ranks record the same steps, so that the first one cannot wait.
        writer: Writes what was recorded.
    """

    def __init__(
        self,
        name: str,
        options: Options,
        schedule: Schedule | None,
        steps: StepKind,
        first_step: int = 0,
    ) -> None:
        self.name = name
        self.pid = os.getpid()
        self.thread = threading.get_ident()
        self.over = False
        self.made_way = False
        self.limit: StepLimit | None = None
        self.is_shared = False
        self.writer = RecordingWriter(name, options, steps)
        self._options = options
        self._schedule = schedule
        self._steps: StepKind = steps
        self._phase = Phase.OFF
        self._cycle = 0
        self._step = first_step
        self._n_waited = 0
        self._n_in_window = self._n_consecutive = 0
        self._is_paused = False
        self._annotation: Any = None
        self._main: profiler.ProfilerRecording | None = None
        self._for_lines: profiler.ProfilerRecording | None = None
        self._kept: profiler.ProfilerRecording | None = None
        self._step_times = StepTimes()
        self.is_busy = False
        self._done = False
        self._is_last = False
        self._interrupt: signals.Interrupt | None = None
        self._profiler_to_come = ""
        self._python_profiler_to_come = ""
        self._has_ended = threading.Event()
        self._has_no_stacks = threading.Event()
        self._cancelled: list[profiler.ProfilerRecording] = []

    @property
    def path(self) -> str | None:
        """The last trace file, or None."""
        return self.writer.path

    @property
    def flight(self) -> str | None:
        """The dump of the FlightRecorder beside it, or None."""
        return self.writer.flight

    @property
    def is_recording(self) -> bool:
        """Whether a profiler of this session is recording."""
        return not self.over and self._phase in {Phase.RECORD, Phase.LINES}

    @property
    def is_waiting(self) -> bool:
        """Whether nothing is recorded because the next steps would cost too much."""
        return self._n_waited > 0 and self._phase is Phase.OFF

    @property
    def is_done(self) -> bool:
        """Whether every cycle of the schedule has been recorded."""
        return self.over or self._done

    @property
    def must_go_on(self) -> bool:
        """Whether a signal handler may not stop the recording here: it runs between any two lines.

        Within a method of this session, a recording that is begun anew would never be stopped.
        """
        return self.is_busy or is_program_paused()

    @property
    def cost(self) -> tuple[int, int]:
        """CPU nanoseconds of the program in the block so far, and those that stopping it took."""
        stopped = [one for one in (self._main, self._kept) if one is not None and one.cpu]
        program_ns = sum(one.cpu.process_ns for one in stopped if one.cpu is not None)
        return program_ns, sum(one.stop_cpu_ns for one in stopped)

    @property
    def stop_ns(self) -> int:
        """CPU nanoseconds that stopping the latest recording of the block took."""
        return 0 if self._main is None else self._main.stop_cpu_ns

    def begin(self) -> None:
        """Open the block."""
        with self._guarded("recording could not start; the program runs without it."):
            _require_no_other_profiler()
            program_profilers.subscribe(self._on_program_profiler)
            self._interrupt = signals.Interrupt(self._make_way)
            self._step_times.begin()
            if self._schedule is None:
                self._enter(0, Phase.RECORD)
            else:
                self._enter(*self._schedule.phase_of(self._step, lines=self.writer.needs_lines))

    def step(self) -> None:
        """End one step of the loop and begin the next."""
        self._stop_cancelled()
        if self.over or self._done:
            return
        with self._guarded("recording stopped."):
            self._close_annotation()
            self._step_times.end(self._phase)
            self._step += 1
            self._n_in_window += self._phase is Phase.RECORD
            self._n_consecutive += 1
            self._is_paused = False
            if self._schedule is None:
                self._open_annotation()
                return
            self._enter(*self._next_phase(self._schedule))
            self._end_if(is_over=self._schedule.is_over(self._cycle))
            self._step_times.begin()

    def pause(self) -> None:
        """Leave what follows out of the steps, until :meth:`resume`: the loop does something else.

        The recorded steps follow each other. Where fewer than planned do, they are dropped and
        steps after the pause are recorded instead, if so many have followed each other before.
        """
        if self.is_done or self._is_paused or self._schedule is None:
            return
        with self._guarded("recording stopped."):
            self._close_annotation()
            self._is_paused = True
            n_consecutive, self._n_consecutive = self._n_consecutive, 0
            n_recorded, n_planned = self._n_in_window, self._schedule.active
            if n_recorded and (n_planned is None or n_consecutive < n_planned):
                self._n_waited -= (n_planned or 0) - n_recorded
                self._enter(self._cycle + 1, Phase.OFF, open_step=self._annotation_name())
                self._end_if(is_over=n_planned is None or self._schedule.is_over(self._cycle))
                return
            recording = {Phase.RECORD: self._main, Phase.LINES: self._for_lines}.get(self._phase)
            if recording is not None:
                recording.stop()
                recording.release()
            if self._phase is Phase.RECORD:
                self._main, self._n_in_window = None, 0
                self._n_waited += n_recorded
            elif self._phase is Phase.LINES:
                self._for_lines = None
            self._phase = Phase.OFF

    def resume(self) -> None:
        """Begin the next step, after :meth:`pause`."""
        if self.is_done or not self._is_paused or self._schedule is None:
            return
        with self._guarded("recording stopped."):
            self._is_paused = False
            self._enter(*self._next_phase(self._schedule))
            self._step_times.begin()

    def end(self, stopped_by: str = "", *, is_last: bool = False) -> None:
        """Close the block, and write what was recorded in it.

        Args:
            stopped_by: The exception or signal that ended it early, or empty.
            is_last: Whether the program has ended, so that nothing is recorded after this.
        """
        self._is_last = is_last
        self._stop_cancelled()
        if self.over:
            return
        with self._guarded("the recording could not be finished."):
            self._close_annotation()
            # In a loop, the step that began last has not ended.
            has_open_step = stopped_by or self._step > 0 or self._schedule is not None
            open_step = self._annotation_name() if has_open_step else ""
            self._enter(self._cycle + 1, Phase.OFF, stopped_by=stopped_by, open_step=open_step)
            if self._for_lines is not None and self.path is None:
                # The loop ended during the warm-up: only the step with stacks was recorded.
                self._main, self._for_lines = self._for_lines, None
                self._write(self._main, stopped_by, open_step)
        self._close()

    def freeze(self) -> None:
        """Stop recording; what was recorded is written at the end."""
        if not self.over:
            with self._guarded("recording stopped."):
                self._close_annotation()
                self._stop_main()
                self._phase = Phase.OFF

    def record_anew(self, *, instead: bool = False) -> bool:
        """Record a frozen block again; the last recording with much in it is written.

        Args:
            instead: Whether the new recording is written, however little is in it.

        Returns:
            Whether it does.
        """
        if self.over or self._main is None or not self.can_record():
            return False
        with self._guarded("recording stopped."):
            if instead:
                self._main.release()
                self._main = None
            self._keep_larger()
            self._phase = Phase.RECORD
            self._prepare_main(start=True)
            self._open_annotation()
        return self.is_recording

    def can_record(self) -> bool:
        """Whether another recording like this one is harmless for the program."""
        return profiler.can_record(all_threads=self._is_of_run())

    def abandon(self) -> None:
        """Stop, and drop everything that was recorded."""
        if not self.over:
            with self._guarded("recording stopped."):
                self._drop()

    def _end_if(self, *, is_over: bool) -> None:
        self._done = is_over
        if is_over:
            self._has_ended.set()

    def _close(self) -> None:
        self.over = True
        if self.limit is not None:
            self.limit.recording_ends()
        program_profilers.unsubscribe(self._on_program_profiler)
        if self._interrupt is not None:
            self._interrupt.cancel()
        self._has_ended.set()

    def _drop(self) -> None:
        for action in (self._close_annotation, self._discard_main):
            with contextlib.suppress(Exception):
                action()
        for recording in filter(None, (self._main, self._for_lines, self._kept)):
            with contextlib.suppress(Exception):
                recording.stop()
            recording.release()
        self._main = self._for_lines = self._kept = None
        self._close()
        release_free_memory()

    def _next_phase(self, schedule: Schedule) -> tuple[int, Phase]:
        """The cycle and phase of the next step: as planned, if that is affordable.

        Otherwise the recorded steps are enough, or recording waits if there is none.
        """
        place = self._step - self._n_waited
        cycle, phase = schedule.phase_of(place, lines=self.writer.needs_lines)
        n_recorded = self._step_times.n_recorded
        is_recorded = phase in {Phase.READY, Phase.RECORD}
        if self.limit is None or not is_recorded or self.limit.affords(n_recorded):
            return cycle, phase
        if n_recorded:
            return cycle + 1, Phase.OFF
        if self.is_shared:
            return cycle, phase
        self._n_waited += 1
        return cycle, Phase.OFF

    def _cut(self) -> None:
        """End the recording within a step, which has too many events."""
        if self.is_done or not self.is_recording:
            return
        if self.must_go_on:
            if self.limit is not None:
                self.limit.cut_later(self._cut)
            return
        with self._guarded("recording stopped."):
            self._stop_all()
            is_whole = self._step_times.n_recorded > 0
            if self._main is not None and self._for_lines is not None and not is_whole:
                self._main.release()
                self._main = None
            self._phase, self._done = Phase.OFF, True
            self._has_ended.set()

    def _limit_recording(self, *, lines: bool) -> None:
        if self.limit is not None:
            self.limit.recording_begins(self._cut, lines=lines)

    def _enter(
        self, cycle: int, phase: Phase, *, stopped_by: str = "", open_step: str = ""
    ) -> None:
        """Leave the phase of the previous step and enter that of the next."""
        if phase is Phase.LINES and self._has_no_stacks_now():
            phase = Phase.OFF
        before, self._phase = self._phase, phase
        is_new_cycle, self._cycle = cycle != self._cycle, cycle
        if before is Phase.LINES and self._for_lines is not None:
            self._stop_lines(self._for_lines)
        if before is Phase.RECORD and (phase is not Phase.RECORD or is_new_cycle):
            self._stop_main()
        if before is Phase.READY and phase is Phase.OFF:
            self._discard_main()
        if self._main is not None and self._main.is_stopped and phase is not Phase.LINES:
            if self._kept is not None:
                self._keep_larger()
                self._main, self._kept = self._kept, None
            self._finish_cycle(self._main, stopped_by, open_step)
        if phase is Phase.LINES:
            self._for_lines = self._recording(stacks=True)
            self._for_lines.start()
            self._limit_recording(lines=True)
        elif phase is not Phase.OFF:
            self._prepare_main(start=phase is Phase.RECORD)
        if self.is_recording:
            self._open_annotation()

    def _on_program_profiler(self, name: str) -> None:
        """End this recording before a profiler of the program does anything, in any thread."""
        self._stop_cancelled()
        if self.is_done or self.pid != os.getpid():
            return
        self._profiler_to_come = name
        if threading.get_ident() == self.thread:
            self._make_way()
        elif not self._makes_way_in_time(self._has_ended):
            self._leave_cancelled()

    def _on_python_profiler(self, name: str) -> None:
        """End a recording with stacks before the program sets a profile function."""
        if self.is_done or self.pid != os.getpid():
            return
        self._python_profiler_to_come = name
        if threading.get_ident() == self.thread:
            self._make_way()
        else:
            self._makes_way_in_time(self._has_no_stacks)

    def _makes_way_in_time(self, done: threading.Event) -> bool:
        """Have this session's thread make way, and wait for that."""
        if self._interrupt is not None:
            self._interrupt.request()
            if done.wait(_WAKE_AFTER_S):
                return True
            self._interrupt.request(wakes=True)
        return done.wait(_MAX_WAIT_S) or (self.is_busy and done.wait(_MAX_WAIT_FOR_END_S))

    def _make_way(self) -> None:
        """End for a profiler of the program; once only, and not inside another method."""
        if self.is_done or self.is_busy:
            return
        if self._python_profiler_to_come:
            self._drop_stacks()
        name = self._profiler_to_come
        if not name:
            return
        self._profiler_to_come = ""
        self.made_way = True
        is_worth_writing = self._is_worth_writing()
        with self._guarded("recording stopped."):
            self._stop_all()
        self._has_ended.set()
        self._has_no_stacks.set()
        ends = (
            f"the recording of “{self.name}” ends there"
            if is_worth_writing
            else f"“{self.name}” is not recorded"
        )
        console.warn(
            f"the program uses a profiler itself ({name}), so {ends}: only one can record."
        )
        if is_worth_writing:
            self.end(OTHER_PROFILER)
        else:
            self.abandon()

    def _drop_stacks(self) -> None:
        """Stop recording stacks: the source lines are dropped, or the block ends."""
        name, self._python_profiler_to_come = self._python_profiler_to_come, ""
        if self._for_lines is not None and self._phase is Phase.LINES:
            with self._guarded("recording stopped."):
                self._close_annotation()
                self._for_lines.stop()
                self._for_lines.release()
                self._for_lines, self._phase = None, Phase.OFF
            self._warn_of_no_lines(name)
        elif self._main is not None and self._main.stacks and not self._main.is_stopped:
            self._profiler_to_come = name
            return
        self._has_no_stacks.set()

    def _stop_all(self) -> None:
        self._close_annotation()
        self._discard_main()
        self._stop_main()
        if self._for_lines is not None:
            self._stop_lines(self._for_lines)

    def _is_worth_writing(self) -> bool:
        """Whether a whole step was recorded, or a block, or a run from its first module on."""
        if self._schedule is not None:
            return self.path is not None or self._step_times.n_recorded > 0
        return self._steps != "whole" or self._options.stacks

    def _leave_cancelled(self) -> None:
        """Leave a recording that another thread's profiler is about to cancel.

        Only its own thread can stop it, and only after that profiler has ended.
        """
        recordings = [each for each in (self._main, self._for_lines) if each is not None]
        self._main = self._for_lines = self._annotation = None
        self._close()
        self._cancelled = [each for each in recordings if each.is_started and not each.is_stopped]
        if self._cancelled:
            program_profilers.subscribe(self._on_program_profiler)
        console.warn(
            f"the program uses a profiler in another thread, so the recording of “{self.name}” "
            "is dropped."
        )

    def _stop_cancelled(self) -> None:
        """Stop a cancelled recording once no profiler of the program is open."""
        if not self._cancelled or threading.get_ident() != self.thread:
            return
        cancelled = [each.torch_profiler for each in self._cancelled]
        if program_profilers.is_open(except_for=cancelled):
            return
        with self._guarded("a recording could not be stopped."):
            while self._cancelled:
                self._cancelled.pop().stop_cancelled()
        self._close()

    def _has_no_stacks_now(self) -> bool:
        """Whether stacks cannot be recorded now, which is said once."""
        if not profiler.can_trace_calls():
            console.warn(
                "the program has replaced `nn.Module.__call__`, which torch's tracer reads, so "
                f"“{self.name}” has no source lines."
            )
            return True
        name = program_profilers.python_profiler()
        if name:
            self._warn_of_no_lines(name)
        return bool(name)

    def _warn_of_no_lines(self, profiler: str) -> None:
        console.warn(
            f"the program uses a Python profiler itself ({profiler}), so “{self.name}” has no "
            "source lines."
        )

    def _recording(self, *, stacks: bool) -> profiler.ProfilerRecording:
        return profiler.ProfilerRecording(
            self._options,
            stacks=stacks,
            all_threads=self._is_of_run(),
            on_python_profiler=self._on_python_profiler,
        )

    def _is_of_run(self) -> bool:
        """Whether all threads are recorded, as a program without steps may work in several."""
        return self._steps == "whole"

    def _prepare_main(self, *, start: bool) -> None:
        if self._main is None:
            has_lines_step = self._schedule is not None and self._schedule.has_lines_step()
            wants_stacks = (
                self.writer.needs_lines and self._for_lines is None and not has_lines_step
            )
            stacks = wants_stacks and not self._has_no_stacks_now()
            self._main = self._recording(stacks=stacks)
            self._main.prepare()
        if start and not self._main.is_started:
            self._main.start()
            self._limit_recording(lines=False)

    def _stop_lines(self, recording: profiler.ProfilerRecording) -> None:
        if self.limit is not None:
            self.limit.recording_ends()
        recording.stop()
        if self.limit is not None:
            self.limit.step_with_stacks_cost(recording.stop_cpu_ns)

    def _stop_main(self) -> None:
        self._n_in_window = 0
        if self._main is not None:
            if self.limit is not None:
                self.limit.recording_ends()
            self._main.stop()

    def _keep_larger(self) -> None:
        """Keep a stopped recording instead of an earlier one if it has at least half its events."""
        later, earlier, self._main = self._main, self._kept, None
        self._kept = later or earlier
        if later is None or earlier is None:
            return
        is_large = later.stop_cpu_ns > _LARGE_NS
        if is_large or 2 * later.n_events() >= earlier.n_events():
            earlier.release()
        else:
            self._kept = earlier
            later.release()

    def _discard_main(self) -> None:
        """End a profiler that was prepared and never started; torch cannot cancel it."""
        if self._main is not None and not self._main.is_started:
            self._main.start()
            self._main.stop()
            self._main = None

    def _write(self, main: profiler.ProfilerRecording, stopped_by: str, open_step: str) -> None:
        self.writer.write(
            main,
            self._for_lines,
            stopped_by=stopped_by,
            is_early=stopped_by not in {"", OTHER_PROFILER, TIME_IS_UP},
            open_step=open_step,
            overhead=self._step_times.overhead(),
        )

    def _finish_cycle(
        self, main: profiler.ProfilerRecording, stopped_by: str, open_step: str
    ) -> None:
        self._main = None
        try:
            self._write(main, stopped_by, open_step)
        finally:
            main.release(is_last=self._is_last)
            if self._for_lines is not None:
                self._for_lines.release(is_last=self._is_last)
            self._for_lines = None
            # A recording takes hundreds of MiB for a moment, which would count as the program's.
            release_free_memory()

    def _annotation_name(self) -> str:
        return self.name if self._schedule is None else f"{STEP_PREFIX}{self._step}"

    def _open_annotation(self) -> None:
        name = self._annotation_name()
        for recording in filter(None, (self._main, self._for_lines)):
            recording.closed.add(name)
        self._annotation = profiler.region(name)
        self._annotation.__enter__()

    def _close_annotation(self) -> None:
        annotation, self._annotation = self._annotation, None
        if annotation is not None:
            annotation.__exit__(None, None, None)

    @contextlib.contextmanager
    def _guarded(self, failure: str) -> Iterator[None]:
        """Turn any error of the block into one warning and the end of the session."""
        global spent_ns  # noqa: PLW0603  (of the process)
        began_ns, is_outermost = time.thread_time_ns(), not self.is_busy
        self.is_busy = True
        try:
            yield
        except Exception as error:  # noqa: BLE001  (no error of ours may end the user's program)
            self._drop()
            console.warn(failure, _with_hint(error))
        finally:
            self.is_busy = False
            spent_ns += (time.thread_time_ns() - began_ns) if is_outermost else 0
            signals.resend_pending()
            if threading.get_ident() == self.thread:
                self._make_way()


def _require_no_other_profiler() -> None:
    if program_profilers.has_daemon():
        raise CaptureError(
            f"{program_profilers.DAEMON} is set: another process may record this one at any time, "
            "and torch allows one profiler.",
            "Unset it to record with profkit.",
        )
    if program_profilers.is_open():
        raise CaptureError(
            "Another torch profiler is running, and torch allows one at a time.",
            "Stop it first, or use only one of the two.",
        )


def _with_hint(error: Exception) -> Exception:
    """An error of the operating system with a hint; any other unchanged."""
    if isinstance(error, OSError):
        path = f": {error.filename}" if error.filename else ""
        return CaptureError(
            f"{error.strerror or error}{path}.",
            "dir= or PROFKIT_DIR sets another folder for traces.",
        )
    return error
