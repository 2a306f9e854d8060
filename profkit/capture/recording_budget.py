"""When the steps of a program can be recorded: at once, or when the run has lasted long enough.

Most of what a recording costs comes after its end: events are collected, written, joined with
source lines, and analyzed. That is proportional to the events, of which a program without modules
or with many small operators makes a hundred times as many in the same time as another one. torch
tells their number only after the end too, so the first recording of a run, which is short, is the
measure: what stopping it took, per CPU second of the program in it.
"""

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Final

FREE_S: Final = 1.0
"""CPU seconds that recording steps may cost any run, so that short ones have a report."""
MAX_SHARE: Final = 0.1
"""Share of the run's CPU time so far that it may cost beyond that."""
COST_PER_STOP: Final = 4.0
"""What a recording costs in all, as a multiple of what stopping it costs. Measured on the programs
of ``benchmarks/programs``: 3 to 5."""
_N_STEPS: Final = 8
"""Steps whose median is that of the steps to come; the first one does what later ones need not."""


class RecordingBudget:
    """How many steps of a run can be recorded.

    Args:
        now_s: The CPU time of the process so far, in seconds.
    """

    def __init__(self, now_s: Callable[[], float] = time.process_time) -> None:
        self._now_s = now_s
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

    def steps(self, measured_ns: tuple[int, int], n_wanted: int) -> int:
        """How many steps are affordable now, besides one with stacks; 0 means to wait.

        Args:
            measured_ns: CPU time of the program in an earlier recording, and that of its stop.
            n_wanted: How many are wanted.
        """
        program_ns, stop_ns = measured_ns
        if not program_ns:
            return n_wanted
        step_s = statistics.median(self._steps_s) if self._steps_s else 0.0
        cost_s = COST_PER_STOP * step_s * stop_ns / program_ns
        allowed_s = max(FREE_S, MAX_SHARE * self._now_s())
        n_steps = n_wanted if not cost_s else int(allowed_s / cost_s) - 1
        return max(0, min(n_wanted, n_steps))
