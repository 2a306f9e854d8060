"""How many of the steps that were to be recorded are, by what the first of them cost."""

import time
from collections.abc import Callable
from typing import Final

from profkit.capture.process.signals import COMPILING_SECONDS, Deadline
from profkit.capture.recording.recording_budget import (
    COST_PER_STOP,
    LONGER,
    SHORT_S,
    Events,
    RecordingBudget,
)

_FOREVER_S: Final = 1e6
_MIN_EVENTS: Final = 10_000
"""Fewer take no more memory than the program may allocate by the way."""


class StepLimit:
    """Ends the recording of steps where it would cost more than the budget has left.

    Args:
        budget: What recording may cost.
        is_measured: Whether it was predicted that the steps are affordable.
        n_steps: How many are to be recorded.
    """

    def __init__(self, budget: RecordingBudget, *, is_measured: bool, n_steps: int) -> None:
        self._budget = budget
        self._n_steps = n_steps
        self._usual_s = LONGER * budget.longest_step_s() + SHORT_S if is_measured else 0.0
        self._deadline: Deadline | None = None
        self._lines_s = self._lines_events = self._n_events = 0.0
        self._began_s = self._took_s = self._lines_step_s = 0.0
        self._events: Events | None = None

    def recording_begins(self, cut: Callable[[], None], *, lines: bool) -> None:
        """The step with stacks is recorded from now on, or the others are.

        Args:
            cut: Ends the recording within a step that may cost more than the budget has left, and
                takes longer than steps do.
            lines: Whether it is the one with stacks.
        """
        self._events = events = Events()
        began_s = self._began_s = time.process_time()
        usual_s = max(SHORT_S, self._usual_s * (1 if lines else self._n_steps))
        if not lines and self._lines_step_s:
            # Its cost is known, and it took longer than steps without stacks do. The heap alone
            # says little: within a step the program allocates more than events take.
            usual_s = max(usual_s, SHORT_S + self._n_steps * self._lines_step_s)

        def is_early() -> bool:
            took_s = time.process_time() - began_s
            return took_s > usual_s and events.cost_s() > self._budget.left_s()

        self._deadline = Deadline(_FOREVER_S, cut, is_early=is_early)

    def cut_later(self, cut: Callable[[], None]) -> None:
        """End the recording as soon as that is possible."""
        self._deadline = Deadline(COMPILING_SECONDS, cut)

    def recording_ends(self) -> None:
        """The recording is about to be stopped."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
            self._n_events = 0.0 if self._events is None else self._events.at_most()
            self._took_s = time.process_time() - self._began_s

    def step_with_stacks_cost(self, stop_ns: int) -> None:
        """Stopping the step with stacks took this much CPU time."""
        self._lines_s, self._lines_events = stop_ns / 1e9, self._n_events
        self._lines_step_s = self._took_s

    def affords(self, n_recorded: int) -> bool:
        """Whether another step is affordable, after that with stacks and so many others.

        One without stacks has at most as many events as the one with stacks. Between two steps the
        heap has grown by little but events.
        """
        step_s = COST_PER_STOP * self._lines_s
        if n_recorded and self._events is not None and self._lines_events > _MIN_EVENTS:
            step_s *= self._events.at_most() / n_recorded / self._lines_events
        unpaid_s = (COST_PER_STOP / 2 - 1) * self._lines_s
        return (n_recorded + 1) * step_s + unpaid_s <= self._budget.left_s()
