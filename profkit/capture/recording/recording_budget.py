"""How much of a program's run can be recorded, by what that costs.

Most of what a recording costs comes after its end: events are collected, written, joined with
source lines, and analyzed. That is proportional to the events, of which a program without modules
or with many small operators makes a thousand times as many in the same time as another one.

torch tells their number only after the end too. What stopping an earlier recording took, per CPU
second of the program in it, predicts a step; the step with stacks then tells what each of the
following ones costs. Meanwhile the heap tells: each event takes memory until the recording is
stopped. It also grows by what the program allocates, so that it can only show that there are few
events, or that it is time to look.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from profkit.capture.process.malloc_stats import Heap

FREE_S: Final = 1.0
"""CPU seconds that recording may cost any run, so that short ones have a report."""
MAX_SHARE: Final = 0.1
"""Share of the run's CPU time so far that it may cost beyond that."""
COST_PER_STOP: Final = 4.0
"""What a recording costs in all, as a multiple of what stopping it costs. Measured on the programs
of ``benchmarks/programs``: 3 to 5."""
SLOWDOWN_PER_STOP: Final = 0.15
"""By how much recording slows down the program, as a multiple of what stopping it costs. Measured:
0.08 to 0.2; a program of small operators takes three times as long with stacks."""
_MAX_SLOWDOWN: Final = 5.0
EVENT_S: Final = 28e-6
"""What an event costs in all. Measured: 21 to 29 µs, of which 5 to 8 µs are those of stopping."""
EVENT_BYTES: Final = 270
"""The least heap memory that an event takes. Measured: 274 to 560 bytes with some thousand events
or more."""
LONGER: Final = 3.0
"""Longer than a step that is recorded takes: recording makes small steps up to three times as
long."""
SHORT_S: Final = 0.05
"""A recording that is shorter need not be bounded: it has at most 100,000 events."""
_N_STEPS: Final = 8
"""Steps whose median is that of the steps to come; the first one does what later ones need not."""


class RecordingBudget:
    """How much of a run can be recorded.

    Args:
        now_s: The CPU time of the process so far, in seconds.
        spent_s: What recording has cost so far, in CPU seconds.
    """

    def __init__(
        self,
        now_s: Callable[[], float] = time.process_time,
        spent_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._now_s = now_s
        self._spent_s = spent_s
        self._step_began_s = now_s()
        self._steps_s: deque[float] = deque(maxlen=_N_STEPS)

    def recording_begins(self) -> None:
        """The program's first step begins with a recording, as far as is known."""
        self._step_began_s = self._now_s()
        self._steps_s.clear()

    def step_ended(self) -> None:
        """A step of the program has ended."""
        now_s = self._now_s()
        self._steps_s.append(now_s - self._step_began_s)
        self._step_began_s = now_s

    def left_s(self) -> float:
        """What further recording may cost now, in CPU seconds."""
        return max(FREE_S, MAX_SHARE * self._now_s()) - self._spent_s()

    def longest_step_s(self) -> float:
        """CPU seconds of the longest of the last steps."""
        return max(self._steps_s, default=0.0)

    def affords_steps(self, measured_ns: tuple[int, int]) -> bool:
        """Whether two steps are affordable now, of which one has stacks.

        Args:
            measured_ns: CPU time of the program in an earlier recording, and that of its stop.
        """
        program_ns, stop_ns = measured_ns
        if not program_ns or not self._steps_s:
            return True
        alone_ns = max(program_ns - SLOWDOWN_PER_STOP * stop_ns, program_ns / _MAX_SLOWDOWN)
        step_s = statistics.median(self._steps_s)
        return 2 * COST_PER_STOP * step_s * stop_ns / alone_ns <= self.left_s()


class Events:
    """How many events a recording has so far, at most, by the growth of the heap since it began."""

    def __init__(self) -> None:
        self._heap = Heap()
        self._at_start = self._heap.allocated()

    def at_most(self) -> float:
        """No more than this many; 0 where the heap is not known."""
        now = self._heap.allocated()
        if now is None or self._at_start is None:
            return 0.0
        return max(0, now.bytes - self._at_start.bytes) / EVENT_BYTES

    def cost_s(self) -> float:
        """What they cost, at most, in CPU seconds."""
        return self.at_most() * EVENT_S
