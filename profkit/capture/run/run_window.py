"""The window in which a run is recorded whose steps are not known: a limited time and work.

What is recorded is written when the program ends or its steps are found. A window with too little
in it begins anew, for twice the time. One that is over within an import that the first calls set
off, as ``torch.func.grad`` imports Dynamo, has nothing else in it: it begins anew with the next
call.
"""

import contextlib
import math
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Final

from profkit.capture.process.signals import COMPILING_SECONDS, Deadline
from profkit.capture.recording.recording_budget import (
    COST_PER_STOP,
    SHORT_S,
    Events,
    RecordingBudget,
)
from profkit.capture.recording.session import Session
from profkit.dataclass import dataclass


@dataclass(frozen=True)
class Window:
    """How long a run is recorded.

    Attributes:
        seconds: At least this long,
        cpu_s: and until the process has used this much CPU time,
        at_most_s: but no longer than this.
        longest_s: While ``seconds`` is less, a window with too little in it begins anew, for twice
            the time: the program imports modules, waits, or runs long operators.
        n_calls: It ends at once after so many calls of all modules if :data:`MIN_WHOLE_CALLS` of
            the first one are among them,
        n_calls_at_most: or after so many in any case: then there are enough events.
        with_modules: Whether there is too little in it without those calls of the first one.
    """

    seconds: float
    cpu_s: float
    at_most_s: float
    longest_s: float = 0.0
    n_calls: float = math.inf
    n_calls_at_most: float = math.inf
    with_modules: bool = False

    def doubled(self) -> "Window":
        """A window of twice the time."""
        return replace(
            self, seconds=2 * self.seconds, cpu_s=2 * self.cpu_s, at_most_s=2 * self.at_most_s
        )


OPS: Final = Window(0.5, 0.25, 10.0, longest_s=16.0)
"""Operators alone: a busy thread makes 100,000 to 300,000 events per second of CPU time."""
STACKS: Final = Window(0.1, 0.08, 1.0, 1.6, n_calls=100, n_calls_at_most=1000, with_modules=True)
"""With stacks: a module's call makes some hundred events, and a busy thread up to a million per
second of CPU time."""
FEW_EVENTS_NS: Final = 10_000_000
"""Too few events to tell what fills the time: stopping the recording took less CPU time than some
2,000 take."""
ENOUGH_EVENTS_NS: Final = 200_000_000
"""Enough events, even without :data:`MIN_WHOLE_CALLS` of the first module: some 40,000."""
MIN_WHOLE_CALLS: Final = 3
_MAX_IMPORTS: Final = 3
"""Windows that are given up for an import: the program may do all of its work within one."""
_IMPORTLIB: Final = "<frozen importlib"


class RunWindow:
    """Ends the recording of a run in time, or begins it anew.

    Args:
        session: The recording, which has begun.
        window: How long it lasts.
        budget: What it may cost; it ends early where it might cost more.
        on_end: Called once it has ended by itself.

    Attributes:
        is_open: Whether the recording goes on.
        awaits_call: Whether it has recorded an import, and begins anew with the next call.
    """

    def __init__(
        self,
        session: Session,
        window: Window,
        budget: RecordingBudget,
        on_end: Callable[[], object] = bool,
    ) -> None:
        self._session = session
        self._on_end = on_end
        self._budget = budget
        self._program_s = 0.0
        self._first_module: weakref.ref[object] | None = None
        self._n_calls = self._n_whole_calls = 0
        self._is_later = False
        self._n_imports = 0
        self.awaits_call = False
        self._begin(window)

    @property
    def ends_soon(self) -> bool:
        """Whether the recording ends within a second or so; False once it has begun anew.

        Without a spare signal it does not end before the program.
        """
        return self.is_open and not self._is_later and self._deadline.has_signal

    def count_call(self, module: object) -> None:
        """Count a call of a module, in any thread, and end the window after enough of them.

        Where its time was up within a backward pass, which may be most of the program's time, the
        next call ends it.
        """
        self._n_calls += 1
        if self._first_module is None:
            with contextlib.suppress(TypeError):
                self._first_module = weakref.ref(module)
        elif self._first_module() is module:
            self._n_whole_calls += 1
        if self.is_open and (self._is_overdue or self._has_enough_calls()):
            self._deadline.come()

    @property
    def is_measure(self) -> bool:
        """Whether it has recorded work of the program, which tells what recording its steps costs.

        Imports and reading of data tell nothing.
        """
        is_work = self._n_calls > 0 or self._session.stop_ns >= FEW_EVENTS_NS
        return is_work and not self.awaits_call

    def cancel(self) -> None:
        """Leave the end of the recording to others."""
        self.is_open = self.awaits_call = False
        self._deadline.cancel()

    def begin_with_call(self) -> None:
        """Begin anew instead of the import that was recorded: a module is called."""
        self.awaits_call = False
        if not self._session.is_done and self._session.record_anew(instead=True):
            self._first_module, self._n_calls, self._n_whole_calls = None, 0, 0
            self._begin(self._window)

    def _begin(self, window: Window) -> None:
        self._window, self.is_open, self._is_overdue = window, True, False
        self._events, self._began_s = Events(), time.monotonic()
        self._deadline = Deadline(
            window.seconds,
            self._on_deadline,
            cpu_s=window.cpu_s,
            at_most_s=window.at_most_s,
            is_early=self._may_cost_more,
        )

    def _may_cost_more(self) -> bool:
        """Whether the events may cost more than is left, besides what the program allocates."""
        is_short = time.monotonic() - self._began_s < SHORT_S
        return not is_short and self._events.cost_s() > self._budget.left_s() + self._program_s

    def _has_enough_calls(self) -> bool:
        """Whether the recorded calls are enough, however little time has passed."""
        if self._n_whole_calls >= MIN_WHOLE_CALLS:
            return self._n_calls > self._window.n_calls
        return self._n_calls > self._window.n_calls_at_most

    def _on_deadline(self) -> None:
        """Time is up, or there are enough calls. A recording with too little begins anew."""
        if self._session.must_go_on:
            self._is_overdue = True
            self._deadline = Deadline(COMPILING_SECONDS, self._on_deadline)
            return
        self.is_open = False
        if self._session.is_done:
            return
        is_early = time.monotonic() - self._began_s < self._window.seconds
        seemed_s = self._events.cost_s() if is_early else 0.0
        self._session.freeze()
        if self._has_import_alone():
            self._n_imports += 1
            self.awaits_call = True
            self._on_end()
            return
        cost_s = COST_PER_STOP * self._session.stop_ns / 1e9
        has_time = is_early or self._window.seconds < self._window.longest_s
        is_affordable = 2 * cost_s < self._budget.left_s()
        is_over = self._has_enough_events() or not (has_time and is_affordable)
        if not is_over and self._session.record_anew():
            # The heap has grown by more than events: twice as much is the program's next time.
            self._program_s = max(self._program_s, 2 * (seemed_s - cost_s))
            self._first_module, self._n_calls, self._n_whole_calls = None, 0, 0
            self._is_later = True
            self._begin(self._window if is_early else self._window.doubled())
        else:
            self._on_end()

    def _has_import_alone(self) -> bool:
        """Whether the program imports, and has not called its modules often enough before."""
        if self._n_imports >= _MAX_IMPORTS or not self._window.with_modules:
            return False
        return self._n_whole_calls < MIN_WHOLE_CALLS and _is_importing()

    def _has_enough_events(self) -> bool:
        """Whether what was recorded tells what fills the time of the run."""
        has_calls = not self._window.with_modules or self._n_whole_calls >= MIN_WHOLE_CALLS
        return self._session.stop_ns >= (FEW_EVENTS_NS if has_calls else ENOUGH_EVENTS_NS)


def _is_importing() -> bool:
    """Whether this thread is within an import."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  (CPython's only way)
    while frame is not None and not frame.f_code.co_filename.startswith(_IMPORTLIB):
        frame = frame.f_back
    return frame is not None
