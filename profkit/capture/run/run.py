"""``profkit run``: records an unmodified program until it ends.

What records is imported when the program imports torch: one without it pays nothing for that.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self

from profkit.capture.process import console, program
from profkit.capture.process.torch_import import TorchImport
from profkit.capture.recording.options import IS_ON
from profkit.capture.run.plan import Plan
from profkit.dataclass import dataclass
from profkit.folders import working_folder

if TYPE_CHECKING:
    from profkit.capture.live.listener import NotListening, ProgramListener
    from profkit.capture.memory.cuda.oom import OomMonitor
    from profkit.capture.process.signals import Finisher
    from profkit.capture.run.step_detection import StepFinder


@dataclass(frozen=True)
class ProgramTarget:
    """The program to run.

    Attributes:
        name: A script's path, a module's name, or source code.
        args: Its arguments.
        kind: Which of the three it is.
    """

    name: str
    args: Sequence[str] = ()
    kind: Literal["script", "module", "code"] = "script"

    @property
    def title(self) -> str:
        """Return the name of the trace: the module's, or the script's without folder and suffix.

        Bytes of a script's name that are not UTF-8 are escaped.
        """
        if self.kind == "code":
            return "command"
        name = self.name if self.kind == "module" else Path(self.name).stem
        return name.encode("utf-8", "backslashreplace").decode("utf-8")

    def run(self) -> BaseException | None:
        """Run it and return the exception that it raised, or None.

        Raises:
            CannotStartError: If it does not exist.
        """
        starts = {
            "script": program.run_script,
            "module": program.run_module,
            "code": program.run_code,
        }
        return starts[self.kind](self.name, self.args)


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    Attributes:
        error: The exception that the program raised, with its own frames only, or None.
        path: The trace file, or None.
        no_recording_reason: Why there is neither a trace nor monitored memory, in one sentence.
        memory: The file of the program's monitored memory, or None.
        snapshot: The snapshot of CUDA memory from an out-of-memory error, or None.
        flights: Dumps of the FlightRecorder: beside the trace, and at the end.
        recording_ns: Processor time that recording took.
        is_of_child: Whether this process is a child that the program forked. The files are its
            parent's.
    """

    error: BaseException | None
    path: str | None
    no_recording_reason: str = ""
    memory: str | None = None
    snapshot: str | None = None
    flights: tuple[str, ...] = ()
    recording_ns: int = 0
    is_of_child: bool = False

    @property
    def files(self) -> list[str]:
        """Return the files to report on."""
        return [file for file in (self.path, self.memory, self.snapshot) if file is not None]


def run(
    target: ProgramTarget,
    plan: Plan,
    killed: Callable[[RunResult], None] | None = None,
    ended: Callable[[BaseException | None], None] | None = None,
    began: Callable[[], None] | None = None,
) -> RunResult:
    """Run a program in this process, record some of its steps and monitor its memory.

    Args:
        target: The program.
        plan: What to record.
        killed: Called when SIGTERM is about to end the process, after all files are written.
        ended: Called when the program has ended, before the files are written, with the exception
            that it raised or None.
        began: Called when the program has imported torch and recording has begun.

    Raises:
        CannotStartError: If the program does not exist.
    """
    running = ProgramRun(plan, killed, began)
    running.begin()

    try:
        error = target.run()
        if ended is not None:
            with _warned(_NOT_FINISHED):
                ended(error)
        running.end(error)
    except program.CannotStartError:
        running.drop()
        raise
    finally:
        running.stop()

    return running.outcome(error)


_NOT_STARTED: Final = "recording could not start; the program runs without it."
_NOT_FINISHED: Final = "the recording could not be finished."


@contextlib.contextmanager
def _warned(text: str) -> Iterator[None]:
    """Turn an error of profkit into a warning: the program and how it ends stay what they are.

    Any call can fail, an import too, where the program has left no file to open or no memory.
    """
    try:
        yield
    except Exception as error:  # noqa: BLE001  (see above)
        console.warn(text, error)


@dataclass(frozen=True)
class _StartingPoint:
    """The process as a run finds it, before the program changes any of it.

    Attributes:
        pid: Its id, which a forked child does not share.
        folder: Its working folder.
        has_torch: Whether torch is imported already.
    """

    pid: int
    folder: Path
    has_torch: bool

    @classmethod
    def read(cls) -> Self:
        """Read it from this process."""
        return cls(os.getpid(), working_folder(), "torch" in sys.modules)


class ProgramRun:
    """One run and the files that it writes. Its errors become warnings.

    Args:
        killed: Called when SIGTERM is about to end the process, after all files are written.
        began: Called when the program has imported torch and recording has begun.
        needs_steps: Whether nothing is recorded of a program that has no steps.
    """

    def __init__(
        self,
        plan: Plan,
        killed: Callable[[RunResult], None] | None = None,
        began: Callable[[], None] | None = None,
        *,
        needs_steps: bool = False,
    ) -> None:
        self._torch_import = TorchImport(self._on_torch_import)
        self._plan = plan
        self._killed = killed
        self._began = began
        self._needs_steps = needs_steps
        self._start = _StartingPoint.read()
        self._finder: StepFinder | None = None
        self._oom: OomMonitor | None = None
        self._flight: str | None = None
        self._listener: ProgramListener | NotListening | None = None
        self._finisher: Finisher | None = None

    @property
    def is_parent(self) -> bool:
        """Return whether this is the process that began the run, and not a forked child."""
        return self._start.pid == os.getpid()

    def begin(self) -> None:
        """Record once the program imports torch, or at once if it has."""
        if IS_ON:
            self._torch_import.watch()

    def end(self, error: BaseException | None) -> None:
        """End the recording with the program.

        Args:
            error: The exception that the program raised, or None.
        """
        if type(error) is RuntimeError:
            with _warned(_NOT_FINISHED):
                from profkit.capture.recording import device_mismatch

                device_mismatch.note(error)
        with _warned(_NOT_FINISHED):
            # sys.exit is a normal end.
            is_normal = error is None or isinstance(error, SystemExit)
            self._finish("" if is_normal else type(error).__name__, error)

    def stop(self) -> None:
        """Leave the process as it was."""
        self._torch_import.stop()
        self._stop_listening()

    def outcome(self, error: BaseException | None) -> RunResult:
        """Return how the run ended; writes the monitored memory.

        Args:
            error: The exception that the program raised, or None.
        """
        try:
            return self._build_result(error)
        except Exception as failure:  # noqa: BLE001  (see _warned)
            console.warn(_NOT_FINISHED, failure)
            return RunResult(error, None, "The recording was lost.")

    def _finish(self, stopped_by: str, error: BaseException | None = None) -> None:
        """End the recording with the program.

        Args:
            stopped_by: The exception or signal that ended the program early, or empty.
            error: The exception that the program raised, or None.
        """
        if self._listener is not None:
            self._listener.end(stopped_by)
        if self._finder is not None and self._is_unwanted(self._finder):
            self._finder.drop()
        elif self._finder is not None:
            self._finder.finish(stopped_by)
            self._dump_collectives(stopped_by, error)

    def _is_unwanted(self, finder: "StepFinder") -> bool:
        return self._needs_steps and not finder.recorder.has_steps

    def _dump_collectives(self, stopped_by: str, error: BaseException | None) -> None:
        """Write the last collectives of this rank, now that it calls no more.

        Args:
            stopped_by: The exception or signal that ended the program early, or empty.
            error: The exception that the program raised, or None.
        """
        from profkit.capture.process import files, flight_recorder
        from profkit.capture.run.rank_failure import Failure, failure_of_exception

        if self.is_parent:
            trace = files.trace_file(self._folder())
            steps = None if self._finder is None else self._finder.step_times()
            now_ns = time.time_ns()
            failure = failure_of_exception(error, now_ns)
            if failure is None and stopped_by:
                failure = Failure(now_ns, signal=stopped_by)
            self._flight = flight_recorder.write(
                trace,
                is_end=True,
                stopped_by=stopped_by,
                steps=steps,
                failure=None if failure is None else failure.to_model(),
            )

    def drop(self) -> None:
        """Write nothing: the program does not exist."""
        if self._finder is not None:
            self._finder.drop()

    def _stop_listening(self) -> None:
        """Stop listening for SIGTERM and out-of-memory errors."""
        if self._finisher is None:
            return
        from profkit.capture.process import signals

        if self._oom is not None:
            self._oom.__exit__(None, None, None)
        signals.remove(self._finisher)

    def _on_torch_import(self) -> None:
        if self.is_parent:
            with _warned(_NOT_STARTED):
                self._begin()
                if self._began is not None:
                    self._began()

    def _begin(self) -> None:
        from profkit.readers.process_memory import garbage_collection_paused

        # Or else the imports set off a full collection of torch's objects, a tenth of a second.
        with garbage_collection_paused():
            from profkit.capture.memory.cuda.oom import OomMonitor
            from profkit.capture.process import environment, signals
            from profkit.capture.recording import current
            from profkit.capture.run.step_detection import StepFinder

        if not current.state.is_on:
            return

        if os.environ.get("PROFKIT_LISTEN"):
            from profkit.capture.live import listener

            if listener.is_wanted():
                self._listener = listener.begin(self._plan.name, self._folder())
        if not (self._plan.record_trace or self._plan.monitor_memory):
            return

        # Before anything is recorded, or else SIGTERM meanwhile would lose it.
        if environment.ranks()[1] not in {None, 1}:
            signals.set_limit(signals.LIMIT_OF_RANK_S)
        self._finisher = signals.Finisher(self._on_sigterm)
        signals.on_sigterm(self._finisher)

        self._finder = StepFinder(self._plan)
        self._finder.on_torch_import(is_first=not self._start.has_torch)
        if self._plan.monitor_memory:
            quiet, folder = self._plan.options.quiet, str(self._folder().parent)
            self._oom = OomMonitor(folder, self._plan.name, quiet=quiet)
            self._oom.__enter__()

    def _on_sigterm(self, signal: str) -> None:
        """Write what there is, and report: the process is about to end."""
        if not self.is_parent:
            return
        self._finish(signal)
        if self._killed is not None:
            self._killed(self._build_result(None))

    def _folder(self) -> Path:
        """Return the folder of the files, also if the program has changed its working directory."""
        from profkit.capture.process import files

        return self._start.folder / files.trace_folder(self._plan.options.folder, self._plan.name)

    def _build_result(self, error: BaseException | None) -> RunResult:
        """Return how the run ended; writes the monitored memory.

        Args:
            error: The exception that the program raised, or None.
        """
        if not self.is_parent:
            return RunResult(error, None, is_of_child=True)

        if self._finder is None:
            reason = "The program did not import torch, so there is nothing to report."
            if "torch" in sys.modules:
                reason = "Nothing was recorded."
            return RunResult(error, None, reason if IS_ON else "PROFKIT=0 turns recording off.")
        if self._is_unwanted(self._finder):
            return RunResult(error, None, "No steps were found.")

        path = self._finder.recorder.path
        if path is not None and not Path(path).exists():  # the program has changed its folder
            path = str(self._start.folder / path)
        memory = self._write_memory(self._finder, path)
        reason = "" if path or memory else self._finder.shortfall_reason or "No trace was written."

        # Imported already, with torch: a program without it has returned above.
        from profkit.capture.recording.session import sessions

        snapshot = None if self._oom is None else self._oom.path
        flights = tuple(
            file for file in (self._finder.recorder.flight, self._flight) if file is not None
        )
        return RunResult(
            error, path, reason, memory, snapshot, flights, recording_ns=sessions.spent_ns
        )

    def _write_memory(self, finder: "StepFinder", path: str | None) -> str | None:
        """Write the monitored memory, if there is any, beside the trace; returns its file."""
        from profkit.capture.process import files

        live = finder.memory()
        if live is None:
            return None
        if finder.shortfall_reason:
            live = replace(live, not_measured=(*live.not_measured, finder.shortfall_reason))
        trace = path or files.trace_file(self._folder())
        return files.write_memory(live, trace, "the program's monitored memory")
