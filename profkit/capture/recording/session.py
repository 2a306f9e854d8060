"""One capture from start to file: its profilers are started, stopped and written here.

What happens when is decided in :mod:`profkit.capture.recording.states`. A session does it where the
program calls it, at a safe point. It never raises into the user's program: an error becomes one
warning and ends the session.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from profkit.capture.process import (
    console,
    environment,
    program_profilers,
    safe_points,
    signals,
)
from profkit.capture.process.malloc_stats import read_heap_bytes
from profkit.capture.recording import worker_samples
from profkit.capture.recording.harmless_kinds import find_stacks_obstacle
from profkit.capture.recording.options import Options
from profkit.capture.recording.profiler import ProfilerRecording, other_profiler_error
from profkit.capture.recording.recording_budget import StepBudget
from profkit.capture.recording.recording_writer import RecordingWriter
from profkit.capture.recording.schedule import Phase, Schedule
from profkit.capture.recording.states import (
    EVERYTHING,
    Actions,
    Allowance,
    RecorderAction,
    RecorderEvent,
    RecorderState,
    Transition,
    next_action,
)
from profkit.capture.recording.step_watch import StepWatch
from profkit.capture.recording.windows import RecordingWindows
from profkit.capture.recording.yielding import Yielding
from profkit.errors import CaptureError
from profkit.model.capture_info import StepKind
from profkit.model.torch_names import STEP_PREFIX
from profkit.readers.process_memory import release_free_memory
from profkit.units import format_count

OTHER_PROFILER: Final = "another profiler"
TIME_IS_UP: Final = "the time limit"
"""What ends a recording while the program goes on."""


class Sessions:
    """All sessions of this process.

    Attributes:
        spent_ns: Processor time that they took in their own methods.
        freed_bytes: Bytes of C's heap that they freed with what they had recorded.
    """

    spent_ns: int = 0
    freed_bytes: int = 0


sessions: Final = Sessions()

_FREE_OF_PROFILER: Final = frozenset({RecorderAction.WRITE, RecorderAction.CLOSE})
"""Actions that neither start nor stop torch's profiler."""


class Session:
    """One outermost ``profkit.trace`` block, or one recorded loop.

    Args:
        schedule: Which steps to record, or None for the whole block.
        first_step: The number of the first step, from 0: more where steps were only counted before.
        budget: Limits what the steps cost, or None.

    Attributes:
        pid: The process that opened it; a forked child does not touch it.
        thread: The thread that opened it.
        yielded_to_profiler: Whether it ended early for a profiler of the program.
        writer: Writes what was recorded.
        state: Where it is.
    """

    def __init__(
        self,
        name: str,
        options: Options,
        schedule: Schedule | None,
        steps: StepKind,
        first_step: int = 0,
        budget: StepBudget | None = None,
    ) -> None:
        self.name = name
        self.pid = os.getpid()
        self.thread = threading.get_ident()
        self.yielded_to_profiler = False
        self.writer = RecordingWriter(name, options, steps)
        self.state = RecorderState(step=first_step, needs_lines=self.writer.needs_lines)
        # A run as a whole has no region: it would last on when nothing is collected any more.
        self._has_regions = steps != "whole"
        self._schedule = schedule
        self._budget = budget
        self._watch = StepWatch(schedule, stacks=options.stacks and options.ops)
        if schedule is not None:
            self.writer.sampled = self._watch.sampled
            self.writer.sampled_spans = self._watch.sampled_spans

        # A program without steps may work in several threads.
        self._windows = RecordingWindows(
            options, all_threads=steps == "whole", on_python_profiler=self._on_python_profiler
        )
        self._yielding = Yielding(
            name, lambda: not self.is_done, self._yield_to_profiler, self._leave_windows
        )

    @property
    def path(self) -> str | None:
        """Return the last trace file, or None."""
        return self.writer.path

    @property
    def flight(self) -> str | None:
        """Return the dump of the FlightRecorder beside it, or None."""
        return self.writer.flight

    @property
    def records_steps(self) -> bool:
        """Return whether it is of the steps of a loop, and not of a whole block."""
        return self._schedule is not None

    @property
    def is_recording(self) -> bool:
        """Return whether a profiler of this session is recording."""
        return self.state.is_recording

    @property
    def is_done(self) -> bool:
        """Return whether nothing more will be recorded."""
        return self.state.is_done

    @property
    def has_whole_step(self) -> bool:
        """Return whether a step was recorded from its begin to its end."""
        return self._watch.times.n_recorded > 0

    def begin(self) -> None:
        """Open the block."""
        with self._guarded("recording could not start; the program runs without it."):
            _require_no_other_profiler()
            _require_safe_point()
            self._yielding.begin()
            worker_samples.begin()
            self._watch.begin()
            self._do(RecorderEvent.BEGIN)
            self._watch.begin_step()

    def count(self, n_steps: int) -> None:
        """Count steps that have ended since all that are recorded were."""
        self._watch.count(n_steps)

    def close_step(self) -> None:
        """Let what profkit does from here to :meth:`step`, which is called next, be in no step."""
        if self.is_done or not self._is_own_thread():
            return
        self._watch.close_step()
        if self.is_recording and safe_points.is_safe():
            with self._guarded("recording stopped.", is_short=True):
                self._end_region()

    def step(self) -> None:
        """End one step of the loop and begin the next.

        At a place where no recording may be stopped, this is no boundary: the step goes on.
        """
        self._act_on_requests()
        if self.is_done or not self._is_own_thread():
            return
        if self._waits_for_samples():
            self._watch.end_step(self.state.phase)
            self._watch.begin_step()
            return
        state, actions = self._plan(RecorderEvent.STEP)
        uses_profiler = not _FREE_OF_PROFILER.issuperset(actions)
        # The search of the stack takes longer than all else at the end of an unrecorded step.
        if (uses_profiler or self.state.is_open) and not safe_points.is_safe():
            return
        if self._has_no_end() and self._watch.is_too_large():
            self._end_early()
            return
        if uses_profiler and safe_points.is_collecting():
            return

        with self._guarded("recording stopped.", is_short=not uses_profiler):
            self._end_region()
            self._watch.end_step(self.state.phase)
            self._enter(state, actions)
            self._watch.begin_step()
        signals.act_if_pending()

    def pause(self) -> None:
        """Leave what follows out of the steps, until :meth:`resume`: the loop does something else.

        The recorded steps follow each other. Where fewer than planned do, they are dropped and
        steps after the pause are recorded instead, if so many have followed each other before.
        """
        if not self.is_done and self._may_act():
            with self._guarded("recording stopped."):
                self._windows.close_region()
                # A window that ends here has begun a step that is none.
                self._do(RecorderEvent.PAUSE, open_step=self._region_name())

    def resume(self) -> None:
        """Begin the next step, after :meth:`pause`."""
        if not self.is_done and self.state.is_paused and self._may_act():
            with self._guarded("recording stopped."):
                self._do(RecorderEvent.RESUME)
                self._watch.begin_step()

    def freeze(self) -> None:
        """Stop recording; what was recorded is written at the end."""
        if not self.is_done and self._may_act():
            with self._guarded("recording stopped."):
                self._windows.close_region()
                self._do(RecorderEvent.FREEZE)

    @property
    def is_muted(self) -> bool:
        """Return whether the recorded block goes on, but nothing more of it is collected."""
        main = self._windows.main
        return main is not None and main.is_muted

    def mute(self) -> None:
        """Collect no more operators, though the recording goes on; any thread may call it."""
        self._windows.mute_main()

    def end(self, stopped_by: str = "", *, is_last: bool = False) -> bool:
        """Close the block, and write what was recorded in it.

        Args:
            stopped_by: The exception or signal that ended it early, or empty.
            is_last: Whether the program has ended, so that nothing is recorded after this.

        Returns:
            Whether it is closed: a recording that is open where none may be stopped goes on to the
            end of the program.
        """
        self._act_on_requests()
        if self.state.is_over:
            return True
        if not self._is_own_thread():
            self._windows.forget_open()
        elif not safe_points.is_safe():
            return False

        # In a loop, the step that began last has not ended.
        has_open_step = stopped_by or self.state.step > 0 or self._schedule is not None
        open_step = self._region_name() if has_open_step else ""
        with self._guarded("the recording could not be finished."):
            self._stop_measuring()
            self._windows.close_region()
            self._do(RecorderEvent.END, stopped_by=stopped_by, open_step=open_step, is_last=is_last)
        return True

    def abandon(self) -> None:
        """Stop, and drop everything that was recorded."""
        if not self.state.is_over:
            with self._guarded("recording stopped."):
                self._drop()

    def forget(self) -> None:
        """Be over in a forked child, which has the profiler's memory but none of its threads."""
        self.state, _ = next_action(self.state, RecorderEvent.DROP, self._schedule)
        if self._budget is not None:
            self._budget.end()

    def _act_on_requests(self) -> None:
        """Make way for a profiler in another thread, at a safe point of this one."""
        if self._yielding.has_requests and self._may_act():
            self._yielding.act()

    def _is_own_thread(self) -> bool:
        return threading.get_ident() == self.thread

    def _may_act(self) -> bool:
        """Return whether torch's profiler may be started or stopped here for this session."""
        return self._is_own_thread() and safe_points.is_safe()

    def _waits_for_samples(self) -> bool:
        """Return whether nothing is recorded any more, and the samples alone are incomplete."""
        is_waiting = self._budget is not None and self.state.has_only_to_write
        return is_waiting and not self._watch.is_explained

    def _has_no_end(self) -> bool:
        """Return whether all steps are recorded that the block has."""
        return self._schedule is None or self._schedule.active is None

    def _end_early(self) -> None:
        """Stop a recording that has too many events; it is written when its block ends."""
        n_steps = format_count(self.state.step + 1)
        self.freeze()
        console.warn(
            f"the recording of “{self.name}” ends after {n_steps} steps, as its events take a GiB "
            "of memory; active=3 records three steps."
        )

    def _plan(self, event: RecorderEvent) -> Transition:
        """Return what an event leads to."""
        allowance = self._allowance()
        state, actions = next_action(self.state, event, self._schedule, allowance)
        # Checked only now: that may take a tenth of a second, and prints a warning.
        if RecorderAction.START_LINES in actions and self._warns_without_stacks():
            allowance = replace(allowance, stacks=False)
            state, actions = next_action(self.state, event, self._schedule, allowance)
        return state, actions

    def _allowance(self) -> Allowance:
        """Return what may be recorded in the next step, as far as the budget is concerned."""
        budget, state = self._budget, self.state
        # A loop of the user is written right after its last recorded step.
        allowance = replace(EVERYTHING, write=budget is None or self._watch.is_explained)
        if state.is_recording:
            allowance = replace(allowance, stop=not environment.is_distributed())
        if budget is None:
            return allowance
        if state.phase is Phase.RECORD:
            return replace(allowance, step=budget.affords_step(state.n_recorded + 1))
        if state.phase is Phase.REST:
            return replace(allowance, lines=budget.affords_lines())
        return allowance

    def _do(self, event: RecorderEvent, **how: Any) -> None:  # noqa: ANN401  (see _enter)
        """Carry out what an event leads to."""
        self._enter(*self._plan(event), **how)

    def _enter(
        self,
        state: RecorderState,
        actions: Actions,
        *,
        stopped_by: str = "",
        open_step: str = "",
        is_last: bool = False,
    ) -> None:
        """Enter a state by the actions that lead to it."""
        self.state = state
        windows = self._windows
        simple: dict[RecorderAction, Callable[[], object]] = {
            RecorderAction.MUTE_LINES: windows.mute_lines,
            RecorderAction.MUTE_MAIN: windows.mute_main,
            RecorderAction.STOP_LINES: windows.stop_lines,
            RecorderAction.STOP_MAIN: windows.stop_main,
            RecorderAction.DISCARD_READY: windows.discard_ready,
            RecorderAction.DROP_LINES: windows.drop_lines,
            RecorderAction.DROP_MAIN: windows.drop_main,
            RecorderAction.PROMOTE_LINES: windows.promote_lines,
            RecorderAction.PREPARE_MAIN: lambda: windows.prepare_main(stacks=self._has_stacks()),
            RecorderAction.START_MAIN: self._start_main,
            RecorderAction.START_LINES: windows.start_lines,
            RecorderAction.CLOSE: self._yielding.end,
        }
        for action in actions:
            if action is RecorderAction.WRITE:
                self._write(stopped_by, open_step, is_last=is_last)
            else:
                simple[action]()

        is_rest = state.phase is Phase.REST and RecorderAction.STOP_MAIN in actions
        if is_rest and self._budget is not None and windows.main is not None:
            self._budget.recording_ended(windows.main, state.n_recorded)
        if state.is_recording and self._has_regions:
            self._begin_region()
        if state.is_done:
            self._yielding.end()

    def _begin_region(self) -> None:
        """Begin the region of a step or block."""
        self._watch.delays.drop()
        if self._schedule is not None and self.state.phase is Phase.RECORD:
            self._watch.delays.begin()
        self._windows.open_region(self._region_name())

    def _end_region(self) -> None:
        """End the region of a step that has ended."""
        self._windows.close_region()
        self._watch.delays.end(self._region_name())

    def _start_main(self) -> None:
        self._windows.start_main(stacks=self._has_stacks())
        if self._budget is not None:
            self._budget.recording_begins()

    def _has_stacks(self) -> bool:
        """Return whether the recorded steps need stacks of their own: no other step has any."""
        has_lines_step = self._schedule is not None and self._schedule.has_lines_step()
        wants_stacks = self.state.needs_lines and self.writer.needs_lines and not has_lines_step
        return wants_stacks and not self._warns_without_stacks()

    def _write(self, stopped_by: str, open_step: str, *, is_last: bool) -> None:
        windows = self._windows
        main = windows.take_main()
        if main is None:
            return

        held_bytes = read_heap_bytes()
        try:
            self.writer.write(
                main,
                windows.lines,
                stopped_by=stopped_by,
                is_early=stopped_by not in {"", OTHER_PROFILER, TIME_IS_UP},
                open_step=open_step,
                step_times=self._watch.times,
                used=self._watch.delays.used,
            )
        finally:
            # A recording takes hundreds of MiB for a moment, which would count as the program's.
            held_bytes = max(held_bytes, read_heap_bytes())
            main.release(is_last=is_last)
            del main
            windows.drop_lines(is_last=is_last)
            release_free_memory()
            sessions.freed_bytes += max(held_bytes - read_heap_bytes(), 0)

    def _region_name(self) -> str:
        return self.name if self._schedule is None else f"{STEP_PREFIX}{self.state.step}"

    def _stop_measuring(self) -> None:
        """Sample and count no more."""
        self._watch.stop()
        if self._budget is not None:
            self._budget.end()

    def _drop(self) -> None:
        self._stop_measuring()
        self.state, _ = next_action(self.state, RecorderEvent.DROP, self._schedule)
        # Only the thread that started torch's profiler can stop it.
        if not self._is_own_thread():
            self._windows.forget_open()
        held_bytes = read_heap_bytes()
        self._windows.drop_all()
        self._yielding.end()
        release_free_memory()
        sessions.freed_bytes += max(held_bytes - read_heap_bytes(), 0)

    def _yield_to_profiler(self, name: str) -> None:
        """End for a profiler of the program."""
        if self.is_done:
            return
        self.yielded_to_profiler = True
        is_worth_writing = self._is_worth_writing()

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

    def _is_worth_writing(self) -> bool:
        """Return whether a whole step was recorded, or a block; the begin of a run is neither."""
        if self._schedule is not None:
            return self.path is not None or self.has_whole_step
        return self._has_regions

    def _leave_windows(self) -> list[ProfilerRecording]:
        """Forget the open windows, which a profiler of the program is about to cancel."""
        self._stop_measuring()
        windows = self._windows.forget_open()
        self._windows.drop_main()
        self._windows.drop_lines()
        self.state, _ = next_action(self.state, RecorderEvent.DROP, self._schedule)
        return windows

    def _on_python_profiler(self, name: str) -> None:
        """End a recording with stacks before the program sets a profile function."""
        if self.is_done or self.pid != os.getpid() or not self._may_act():
            return
        if self.state.phase is Phase.RECORD and self._windows.main_has_stacks:
            self._yield_to_profiler(name)
            return
        with self._guarded("recording stopped."):
            self._windows.close_region()
            self._do(RecorderEvent.YIELD_STACKS)
        self._warn_of_no_lines(_describe_python_profiler(name))

    def _warns_without_stacks(self) -> bool:
        """Return whether stacks cannot be recorded now, and say why."""
        reason = find_stacks_obstacle()
        profiler = program_profilers.find_python_profiler()
        if reason or profiler:
            self._warn_of_no_lines(reason or _describe_python_profiler(profiler))
        return bool(reason or profiler)

    def _warn_of_no_lines(self, reason: str) -> None:
        self.writer.no_stacks_reason = reason
        console.warn(f"{reason}, so “{self.name}” has no source lines.")

    @contextlib.contextmanager
    def _guarded(self, failure: str, *, is_short: bool = False) -> Iterator[None]:
        """Turn any error of the block into one warning and the end of the session.

        Args:
            is_short: Whether the block neither starts nor stops a recording: it is too short for
                the program's signal handlers to be held back.
        """
        began_ns = time.thread_time_ns()
        with contextlib.nullcontext() if is_short else signals.held():
            try:
                yield
            except Exception as error:  # noqa: BLE001  (no error of ours may end the user's program)
                self._drop()
                console.warn(failure, _with_hint(error))
            finally:
                sessions.spent_ns += time.thread_time_ns() - began_ns


def _describe_python_profiler(name: str) -> str:
    return f"the program uses a Python profiler itself ({name})"


def _require_safe_point() -> None:
    if not safe_points.is_safe():
        raise CaptureError(
            "No recording can begin within an operator, a backward pass, a compilation or a signal "
            "handler.",
            "Begin it around the step.",
        )


def _require_no_other_profiler() -> None:
    if program_profilers.has_daemon():
        raise CaptureError(
            f"{program_profilers.DAEMON} is set: another process may record this one at any time, "
            "and torch allows one profiler.",
            "Unset it to record with profkit.",
        )
    if program_profilers.is_open():
        raise other_profiler_error()


def _with_hint(error: Exception) -> Exception:
    """Return an error of the operating system with a hint; any other unchanged."""
    if isinstance(error, OSError):
        path = f": {error.filename}" if error.filename else ""
        return CaptureError(
            f"{error.strerror or error}{path}.",
            "dir= or PROFKIT_DIR sets another folder for traces.",
        )
    return error
