"""One capture from its first line to its file: windows are opened, closed and written here.

A session never raises into the user's program: what goes wrong becomes one warning, and the
session is over.
"""

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from profkit.capture import compiles, console, environment, files, malloc_stats, profiler, signals
from profkit.capture.options import Options
from profkit.capture.overhead import Overhead, estimated
from profkit.capture.schedule import Phase, Schedule
from profkit.capture.source.op_lines import Lines, lines_of
from profkit.errors import CaptureError
from profkit.model.capture_info import CaptureCost, StepKind
from profkit.model.torch_names import STEP_PREFIX

_known_lines: dict[str, Lines] = {}
"""Lines of the first recording of each name, lent to its later ones."""


def forget_lines() -> None:
    """Lend no lines of what was recorded so far."""
    _known_lines.clear()


class Session:
    """One outermost ``profkit.trace`` block, or one watched loop.

    Args:
        name: The capture's name.
        options: What to record.
        schedule: Which steps to record, or None for the whole block.
        steps: What a step is.

    Attributes:
        path: The file written last, or None.
        pid: The process that began it; a forked child leaves it alone.
        thread: The thread that began it.
    """

    def __init__(
        self, name: str, options: Options, schedule: Schedule | None, steps: StepKind
    ) -> None:
        self.name = name
        self.path: str | None = None
        self.pid = os.getpid()
        self.thread = threading.get_ident()
        self.over = False
        self._options = options
        self._schedule = schedule
        self._steps: StepKind = steps
        self._phase = Phase.OFF
        self._cycle = 0
        self._step = 0
        self._mark: Any = None
        self._main: profiler.ProfilerRecording | None = None
        self._lender: profiler.ProfilerRecording | None = None
        self._stretch = Overhead()
        self._lends = options.stacks and options.ops and name not in _known_lines
        self._busy = False
        self._done = False
        self._cwd = _cwd()

    @property
    def is_recording(self) -> bool:
        """Whether a profiler of this session records now."""
        return not self.over and self._phase in {Phase.RECORD, Phase.LEND}

    @property
    def is_done(self) -> bool:
        """Whether every cycle of the schedule has been recorded."""
        return self.over or self._done

    @property
    def is_busy(self) -> bool:
        """Whether the session is at work itself, so that a signal has to wait for it."""
        return self._busy

    def begin(self) -> None:
        """Open the block."""
        with self._guarded("profkit could not start recording, so the program runs without it."):
            self._stretch.begin()
            if self._schedule is None:
                self._enter(0, Phase.RECORD)
            else:
                self._enter(*self._schedule.place(0, lend=self._lends))

    def step(self) -> None:
        """A step of the loop has ended and the next one begins."""
        if self.over or self._done:
            return
        with self._guarded("profkit stopped recording."):
            self._close_mark()
            self._stretch.step(self._phase)
            self._step += 1
            if self._schedule is None:
                self._open_mark()
                return
            self._enter(*self._schedule.place(self._step, lend=self._lends))
            self._done = self._schedule.is_over(self._cycle)
            self._stretch.begin()

    def end(self, stopped_by: str = "") -> None:
        """Close the block, and write what was recorded in it.

        Args:
            stopped_by: The exception or signal that ended it early, or empty.
        """
        if self.over:
            return
        with self._guarded("profkit could not finish recording."):
            self._close_mark()
            unfinished = self._mark_name() if self._is_unfinished(stopped_by) else ""
            self._enter(self._cycle + 1, Phase.OFF, stopped_by=stopped_by, open_step=unfinished)
            if self._lender is not None and self.path is None:
                # The loop ended during the warm-up: the step that was to lend its lines is all.
                self._main, self._lender = self._lender, None
                self._write(self._main, stopped_by, unfinished)
        self.over = True

    def freeze(self) -> None:
        """Record no more, and keep what there is until the end."""
        if not self.over:
            with self._guarded("profkit stopped recording."):
                self._close_mark()
                self._stop_main()
                self._phase = Phase.OFF

    def abandon(self) -> None:
        """Drop everything that was recorded."""
        if not self.over:
            self._give_up()

    def _is_unfinished(self, stopped_by: str) -> bool:
        """Whether a step was still open: with steps, the last one that began never ended."""
        return bool(stopped_by) or self._step > 0 or self._schedule is not None

    def _enter(
        self, cycle: int, phase: Phase, *, stopped_by: str = "", open_step: str = ""
    ) -> None:
        """Leave the phase of the step before and enter that of the next."""
        before, self._phase = self._phase, phase
        new_cycle, self._cycle = cycle != self._cycle, cycle
        if before is Phase.LEND and self._lender is not None:
            self._lender.stop()
        if before is Phase.RECORD and (phase is not Phase.RECORD or new_cycle):
            self._stop_main()
        if before is Phase.READY and phase is Phase.OFF:
            self._discard_main()
        if self._is_complete(phase):
            self._finish_cycle(stopped_by, open_step)
        if phase is Phase.LEND:
            self._lender = self._recording(stacks=True)
            self._lender.start()
        elif phase is not Phase.OFF:
            self._ready_main(start=phase is Phase.RECORD)
        if self.is_recording:
            self._open_mark()

    def _recording(self, *, stacks: bool) -> profiler.ProfilerRecording:
        return profiler.ProfilerRecording(self._options, stacks=stacks, make_way=self._make_way)

    def _make_way(self) -> None:
        """The program starts a profiler of its own, and torch allows one at a time."""
        console.warn(
            f"the program started a torch profiler inside “{self.name}”, "
            "so the recording ends there. Leave one of the two out."
        )
        self.end("another profiler")

    def _is_complete(self, phase: Phase) -> bool:
        """Whether a recorded window can be written: it has stopped and no lines are to come."""
        return self._main is not None and self._main.is_stopped and phase is not Phase.LEND

    def _ready_main(self, *, start: bool) -> None:
        if self._main is None:
            own = self._lends and self._lender is None and not self._will_be_lent()
            self._main = self._recording(stacks=own)
            self._main.prepare()
        if start and not self._main.is_started:
            self._main.start()

    def _will_be_lent(self) -> bool:
        return self._schedule is not None and self._schedule.can_lend()

    def _stop_main(self) -> None:
        if self._main is not None and self._main.is_started and not self._main.is_stopped:
            self._main.stop()

    def _discard_main(self) -> None:
        """End a profiler that was prepared and never used; torch has no other way to cancel it."""
        if self._main is not None and not self._main.is_started:
            self._main.start()
            self._main.stop()
            self._main = None

    def _finish_cycle(self, stopped_by: str, open_step: str) -> None:
        main, self._main = self._main, None
        try:
            if main is not None:
                self._write(main, stopped_by, open_step)
        finally:
            for recording in (main, self._lender):
                if recording is not None:
                    recording.forget()
            self._lender = None
            malloc_stats.trim()

    def _lines(self, main: profiler.ProfilerRecording) -> Lines | None:
        """The lines of a window: its own, those of the step that lends, or those of before."""
        if main.stacks:
            own = lines_of(main, self.name)
            _known_lines.setdefault(self.name, own.lent())
            return own
        if self._lender is not None:
            _known_lines[self.name] = lines_of(self._lender, self.name).lent()
            self._lends = False
        return _known_lines.get(self.name) if self._options.stacks else None

    def _write(self, main: profiler.ProfilerRecording, stopped_by: str, open_step: str) -> None:
        """Put a stopped window into its file."""
        began_ns = time.perf_counter_ns()
        info = environment.describe(self.name, self._steps)
        target = files.trace_file(self._home(), info.rank)
        with tempfile.TemporaryDirectory(prefix="profkit-") as scratch:
            exported = Path(scratch) / "trace.json"
            main.export(exported)
            n_events = files.count_events(exported)
            lines = self._lines(main)
            share, basis = self._stretched(main, lines, n_events, early=bool(stopped_by))
            cost = CaptureCost(
                start_ns=main.start_ns,
                stop_ns=main.stop_ns,
                write_ns=time.perf_counter_ns() - began_ns,
                n_events=n_events,
                overhead_ratio=share,
                overhead_basis=basis,
            )
            info = replace(
                info,
                cost=cost,
                stopped_by=stopped_by,
                open_step=open_step,
                compiles=compiles.read(),
            )
            if lines is not None:
                info = replace(info, lines=lines.ops, paths=lines.paths, libraries=lines.libraries)
            files.write_trace(exported, target, info)
        self.path = str(target)
        console.note(
            f"recorded “{self.name}”; next: profkit analyze {target}", quiet=self._options.quiet
        )

    def _home(self) -> Path:
        """The folder as it was meant when the block began, wherever the program went since."""
        folder = files.trace_folder(self._options.folder, self.name)
        return folder if self._cwd is None or self._cwd == _cwd() else Path(self._cwd) / folder

    def _stretched(
        self, main: profiler.ProfilerRecording, lines: Lines | None, n_events: int, *, early: bool
    ) -> tuple[float | None, str]:
        """By how much recording stretched a window, and how that is known.

        A program that is about to end is not held up by measuring.
        """
        compared = self._stretch.compared()
        if compared is not None or early:
            return compared or (None, "")
        n_calls = lines.n_calls if lines is not None else 0
        return estimated(self._options, main.window_ns, n_calls, max(n_events - n_calls, 0))

    def _mark_name(self) -> str:
        return self.name if self._schedule is None else f"{STEP_PREFIX}{self._step}"

    def _open_mark(self) -> None:
        self._mark = profiler.region(self._mark_name())
        self._mark.__enter__()

    def _close_mark(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    @contextlib.contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """Turn whatever goes wrong in here into one warning and the end of the session."""
        self._busy = True
        try:
            yield
        except (CaptureError, OSError, RuntimeError, ValueError) as error:
            self._give_up()
            console.warn(what, _with_hint(error))
        except Exception as error:  # noqa: BLE001  (a bug of ours must not end the user's program)
            self._give_up()
            console.warn(what, error)
        finally:
            self._busy = False
            signals.resend_pending()

    def _give_up(self) -> None:
        """Stop whatever runs, without a word."""
        self.over = True
        self._attempt(self._close_mark)
        self._attempt(self._discard_main)
        for recording in (self._main, self._lender):
            if recording is None:
                continue
            if recording.is_started and not recording.is_stopped:
                self._attempt(recording.stop)
            recording.forget()
        self._main = self._lender = None
        malloc_stats.trim()

    @staticmethod
    def _attempt(action: Callable[[], None]) -> None:
        with contextlib.suppress(Exception):
            action()


def _cwd() -> str | None:
    """The working directory, or None when it has been removed."""
    try:
        return str(Path.cwd())
    except OSError:
        return None


def _with_hint(error: Exception) -> Exception:
    """An error of the system as one with advice, where there is some."""
    if isinstance(error, OSError):
        place = f" {error.filename}" if error.filename else ""
        return CaptureError(
            f"{error.strerror or error}:{place}.".replace("::", ":"),
            "dir= or PROFKIT_DIR chooses another folder for traces.",
        )
    return error
