"""Records steps of a running program on request, the same ones on all ranks of its job."""

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from profkit.capture.live.endpoint import Message
from profkit.capture.live.server import Client
from profkit.capture.live.step_clock import StepClock
from profkit.capture.live.step_ends import StepEnds
from profkit.capture.memory.cuda.history import SUFFIX as SNAPSHOT_SUFFIX
from profkit.capture.memory.scope import Memory, MemoryOptions
from profkit.capture.process import console, files, own_threads, program_profilers
from profkit.capture.recording import current
from profkit.capture.recording.options import Options
from profkit.capture.recording.schedule import DEFAULT_WAIT, DEFAULT_WARMUP, Schedule
from profkit.capture.recording.session import TIME_IS_UP, Session
from profkit.capture.recording.shared_steps import SharedSteps
from profkit.readers.live_memory import SUFFIX as MEMORY_SUFFIX

_N_BEFORE: Final = DEFAULT_WAIT + DEFAULT_WARMUP
"""Steps between the begin and the first recorded step: a rank may come that much later."""
_NO_LIMIT: Final = 1 << 30
"""The recordings of a name are not limited: each of them was requested."""
MAX_STEPS: Final = 100
"""Steps that one request records at most: their events are all in memory until the end."""
_LEAST_S: Final = 10.0
"""A recording may take this many seconds, and in addition what its steps take."""
_SLOWDOWN: Final = 3.0
"""How much longer recorded steps may take: a program of small operators takes three times as long
with stacks."""


class Request:
    """A recording that was requested.

    Args:
        number: What tells it from others; the same on all ranks.
        client: Gets the answer.
    """

    def __init__(
        self, name: str, number: str, n_steps: int, client: Client, *, memory: bool
    ) -> None:
        self.n_steps = n_steps
        self.client = client
        self.with_memory = memory
        self.is_cancelled = False
        self.is_at_step_end = False
        self.is_noted = False
        self.shared = SharedSteps(f"{name}/{number}")
        self.session: Session | None = None
        self.memory: Memory | None = None
        self.ends_s = math.inf
        self.is_closed = threading.Event()

    @property
    def is_dropped(self) -> bool:
        """Tell whether its client has gone before it began: no step may end for long.

        A step that ends meanwhile sees first that it is cancelled.
        """
        return self.is_cancelled and not self.is_at_step_end and self.session is None


class StepRecorder:
    """The recordings that are requested, one at a time.

    Args:
        name: The name of the run.
        folder: Its folder, absolute, which has that name.
        ends: The hooks at the ends of its steps.
        clock: Its steps.

    Attributes:
        request: What was requested and is not done, or None.
    """

    def __init__(self, name: str, folder: Path, ends: StepEnds, clock: StepClock) -> None:
        self.request: Request | None = None
        self._name = name
        self._folder = str(folder.parent)
        self._ends = ends
        self._clock = clock

    def begin(self, number: str, n_steps: int, client: Client, *, memory: bool) -> Message | None:
        """Record the next steps; called in the thread that answers.

        Args:
            number: What tells this recording from others; the same on all ranks.

        Returns:
            Why it cannot be done, or None: the client gets an answer when it is done.
        """
        if not 1 <= n_steps <= MAX_STEPS:
            return _refusal(f"a recording has 1 to {MAX_STEPS} steps")
        if self.request is not None and not self.request.is_dropped:
            return _refusal("another recording is under way; try again when it is done")
        reason = _refusal_reason()
        if reason:
            return _refusal(reason)
        self.request = Request(self._name, number, n_steps, client, memory=memory)
        self._clock.on_step = self._end_step
        return None

    def cancel(self, client: Client) -> None:
        """Drop what a client has requested at the end of the next step, unless it has begun."""
        request = self.request
        if request is not None and request.client is client:
            request.is_cancelled = True

    def _end_step(self, n_steps: int) -> None:
        """Begin, continue or end the requested recording at the end of a step."""
        request = self.request
        if request is None:
            return

        # From here on the other thread does not drop the request: see ``is_dropped``.
        request.is_at_step_end = True
        try:
            if request.session is not None:
                request.session.step()
                if request.session.is_done:
                    self._finish(request)
                elif time.monotonic() > request.ends_s:
                    self._finish(request, TIME_IS_UP)
            elif request.is_cancelled:
                self._close(request)
            else:
                self._begin_if_time(request, n_steps)
        except Exception as error:  # noqa: BLE001  (no error of ours may end the user's program)
            console.warn("the recording that was requested has failed.", error)
            self._drop(request)
            self._close(request, _refusal(f"recording failed: {error}"))
        finally:
            request.is_at_step_end = False

    def stop(self, stopped_by: str) -> None:
        """End the recording, because the program ends or its steps do not: write what there is."""
        request = self.request
        if request is not None:
            with contextlib.suppress(Exception):
                self._finish(request, stopped_by)

    def _begin_if_time(self, request: Request, n_steps: int) -> None:
        """Begin a requested recording at the step that all ranks share, unless that is refused."""
        # Rank 0 decides with the second step, when it knows how long steps take.
        n_late = request.shared.begins(n_steps, is_affordable=request.is_noted)
        request.is_noted = True
        if n_late is None:
            return

        reason = _refusal_reason()
        if not reason and program_profilers.is_open():
            reason = "the program uses a profiler itself, and torch allows one at a time"
        if reason:
            self._close(request, _refusal(reason))
            return

        if current.state.session is not None:  # that of profkit run, which is done
            current.leave(current.state.session)
        self._begin(request, n_late)

    def _begin(self, request: Request, n_late: int) -> None:
        """Begin a recording whose steps rank 0 has decided.

        Args:
            n_late: How many steps ago the ranks of the job began.
        """
        source = self._ends.source
        if request.with_memory:
            options = MemoryOptions(self._name, _NO_LIMIT, self._folder, quiet=True)
            request.memory = Memory(options)
            request.memory.__enter__()
        request.session = current.open_session(
            self._name,
            Options(folder=self._folder, quiet=True),
            Schedule(DEFAULT_WAIT, DEFAULT_WARMUP, request.n_steps),
            "user" if source is None or source == "module" else source,
            n_late if n_late < _N_BEFORE else 0,
        )

        limit_s = _LEAST_S + _SLOWDOWN * self._clock.longest_s(_N_BEFORE + request.n_steps)
        request.ends_s = time.monotonic() + limit_s
        own_threads.start(lambda: self._answer_in_time(request))

    def _answer_in_time(self, request: Request) -> None:
        """Answer a client whose steps do not end; runs in a thread of its own."""
        if request.is_closed.wait(max(0.0, request.ends_s - time.monotonic())):
            return

        reason = (
            "the program has not ended the recorded steps in time; what was recorded is written "
            "when the current one ends"
        )
        request.client.answer(_refusal(reason))

    def _finish(self, request: Request, stopped_by: str = "") -> None:
        """End the recording, and say where it is."""
        session, memory = request.session, request.memory
        if session is not None:
            current.leave(session, stopped_by)
        if memory is not None:
            memory.__exit__(None, None, None)

        trace = None if session is None else session.path
        if trace is not None:
            files_written = [trace, *(_move_beside(trace, memory) if memory is not None else ())]
            answer: Message = {"files": files_written, "stopped_by": stopped_by}
        elif session is not None and session.yielded_to_profiler:
            answer = _refusal("the program began to use a profiler itself, which comes first")
        else:
            answer = _refusal("nothing was recorded; the program's stderr says why")

        self._close(request, answer)

    def _drop(self, request: Request) -> None:
        """End what has begun, and write no trace."""
        with contextlib.suppress(Exception):
            if request.session is not None:
                request.session.abandon()
                current.leave(request.session)
        with contextlib.suppress(Exception):
            if request.memory is not None:
                request.memory.__exit__(None, None, None)

    def _close(self, request: Request, answer: Message | None = None) -> None:
        if self.request is request:  # else the next one was requested meanwhile
            self._clock.on_step = None
            self.request = None
        request.is_closed.set()
        if answer is not None:
            request.client.answer(answer)


def _move_beside(trace: str, memory: Memory) -> Iterator[str]:
    """Give the files of a block the name of the trace, so that they are one recording."""
    for file, suffix in ((memory.path, MEMORY_SUFFIX), (memory.snapshot, SNAPSHOT_SUFFIX)):
        if file is not None:
            yield str(Path(file).replace(files.beside(trace, suffix)))


def _refusal_reason() -> str:
    """Return why nothing can be recorded now, or an empty text."""
    session = current.state.session
    if not current.state.is_on:
        return "recording is off in this process"
    if session is not None and not session.is_done:
        return f"the program is recording “{session.name}” itself"
    if program_profilers.has_daemon():
        return f"{program_profilers.DAEMON} is set: another process may record at any time"
    return ""


def _refusal(reason: str) -> Message:
    return {"error": reason, "pid": os.getpid()}
