"""What is measured of the steps of a capture besides events: times, delays, samples of stacks."""

import threading
import time
from typing import Final

from profkit.capture.recording.overhead import StepTimes
from profkit.capture.recording.recording_budget import Events
from profkit.capture.recording.schedule import Phase, Schedule
from profkit.capture.recording.step_delays import StepDelays
from profkit.capture.recording.step_samples import Span, StepSamples
from profkit.model.capture_info import SampledTime

MAX_EVENTS: Final = 4_000_000
"""Events of one recording; they take 1 GiB at least, and half a minute to collect."""
_PAUSE_S: Final = 0.5
"""Between two readings of the heap, which may take a tenth of a millisecond."""


class StepWatch:
    """Times the steps of this thread, and samples their stacks.

    Args:
        schedule: Which steps are recorded, or None without steps.
        stacks: Whether source lines are wanted.

    Attributes:
        times: How long the steps took.
        delays: The processor time of the recorded steps.
    """

    def __init__(self, schedule: Schedule | None, *, stacks: bool) -> None:
        self.times = StepTimes()
        self.delays = StepDelays()
        # Of several cycles each is written when it ends: there is no time for samples.
        is_once = schedule is not None and schedule.repeat == 1
        self._samples = StepSamples(threading.get_ident()) if is_once and stacks else None
        self._events = Events()
        self._next_s = 0.0

    @property
    def is_explained(self) -> bool:
        """Return whether the recorded steps need no more samples."""
        return self._samples is None or self._samples.is_over

    def is_too_large(self) -> bool:
        """Return whether the events of a recording without an end take too much memory."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + _PAUSE_S
        # An upper bound, by the growth of the heap: torch counts its events only at the stop.
        return self._events.at_most() > MAX_EVENTS

    def begin(self) -> None:
        """Begin to sample, where the first step begins."""
        if self._samples is not None:
            self._samples.begin()

    def begin_step(self) -> None:
        """Begin a step."""
        if self._samples is not None:
            self._samples.step_begins()
        self.times.begin()

    def count(self, n_steps: int) -> None:
        """Count unrecorded steps that have ended, before the one that ends next."""
        if self._samples is not None:
            self._samples.count(n_steps)
        self.times.count(n_steps)

    def close_step(self) -> None:
        """Count what follows in no step."""
        self.times.stop()

    def end_step(self, phase: Phase) -> None:
        """End a step.

        Args:
            phase: What happened in it.
        """
        self.times.end(phase)
        if self._samples is not None:
            self._samples.step_ended(phase is Phase.RECORD)

    def stop(self) -> None:
        """Sample no more."""
        if self._samples is not None:
            self._samples.stop()

    def sampled(self) -> SampledTime | None:
        """Return in which functions the steps were, or None if that is not known."""
        return None if self._samples is None else self._samples.summarize()

    def sampled_spans(self) -> list[Span]:
        """Return when the steps were sampled."""
        return [] if self._samples is None else self._samples.spans
