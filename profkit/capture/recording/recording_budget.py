"""How much of a program's run can be recorded, by what that costs.

Most of what a recording costs comes after its end: events are collected, written, joined with
source lines, and analyzed. That is proportional to the events, of which a program with many small
operators makes a thousand times as many in the same time as another one.

torch tells their number only after the end. Meanwhile two bounds are known: each event takes memory
until the recording is stopped, so that the growth of the heap bounds their number; and a thread
makes no more than so many per second. The heap also grows by what the program allocates, so that
there may be far fewer. One step is recorded whatever it costs.
"""

import time
from collections.abc import Callable
from typing import Final

from profkit.capture.process.malloc_stats import Heap
from profkit.capture.recording.profiler import ProfilerRecording

FREE_S: Final = 1.0
"""CPU seconds that recording may cost any run, so that short ones have a report."""
MAX_SHARE: Final = 0.1
"""Share of the run's CPU time so far that it may cost beyond that."""
EVENT_S: Final = 28e-6
"""What an event costs in all. Measured: 21 to 29 µs, of which 5 to 8 µs are those of stopping."""
STOP_EVENT_S: Final = 6.5e-6
"""What stopping a recording takes per event."""
EVENT_BYTES: Final = 270
"""The least heap memory that an event takes. Measured: 274 to 560 bytes with some thousand events
or more."""
EVENTS_PER_BLOCK: Final = 1024
"""Events of one kind and thread that torch collects in a block."""
EVENTS_PER_S: Final = 300_000
"""Operators and allocations that a busy thread records at most per second of its CPU time."""
CALLS_PER_S: Final = 1_000_000
"""Python calls that it records at most."""
CALL_S: Final = 8e-6
"""What a recorded Python call costs in all: it is in no file, only looked through for lines."""


class RecordingBudget:
    """How much of a run can be recorded.

    Args:
        now_s: Returns the CPU time of the process so far, in seconds.
        spent_s: Returns what recording has cost so far, in CPU seconds.
    """

    def __init__(
        self,
        now_s: Callable[[], float] = time.process_time,
        spent_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._now_s = now_s
        self._spent_s = spent_s

    def left_s(self) -> float:
        """Return what further recording may cost now, in CPU seconds."""
        return max(FREE_S, MAX_SHARE * self._now_s()) - self._spent_s()


class StepBudget:
    """How many of the planned steps are recorded, and when the one with stacks is.

    Args:
        budget: What recording may cost.
        thread_s: Returns the CPU time of this thread, in seconds.
    """

    def __init__(
        self, budget: RecordingBudget, thread_s: Callable[[], float] = time.thread_time
    ) -> None:
        self._budget = budget
        self._thread_s = thread_s
        self._events = Events()
        self._began_s = 0.0
        self._lines_s: float | None = None

    def recording_begins(self) -> None:
        """Note that steps are recorded from now on."""
        self._events, self._began_s = Events(), self._thread_s()
        self._lines_s = None

    def affords_step(self, n_recorded: int) -> bool:
        """Return whether another step is affordable after some that cost about the same.

        Args:
            n_recorded: Steps that have been recorded since :meth:`recording_begins`; at least 1.
        """
        n_events = min(self._events.at_most(), EVENTS_PER_S * (self._thread_s() - self._began_s))
        return EVENT_S * n_events * (n_recorded + 1) / n_recorded <= self._budget.left_s()

    def affords_lines(self, main: ProfilerRecording | None, n_recorded: int) -> bool:
        """Return whether a step with stacks is affordable, besides the recorded ones.

        It records each Python call. There are at most as many as a thread makes in the time that
        it has spent outside of operators.

        Args:
            main: The recorded steps, stopped.
            n_recorded: Their number.
        """
        # Once per recording, as the time in operators takes a walk over all events.
        if self._lines_s is None:
            self._lines_s = 0.0 if main is None else _cost_of_lines_s(main, n_recorded)
        return self._lines_s <= self._budget.left_s()


def _cost_of_lines_s(main: ProfilerRecording, n_recorded: int) -> float:
    """Return what a step with stacks costs at most, together with the rest of the recorded ones."""
    stop_s = main.cost.stop_cpu_ns / 1e9
    # Those of devices are collected at the stop, which took 15 µs per event on an H100.
    n_ops = main.cost.n_exported or stop_s / STOP_EVENT_S
    thread_s = 0.0 if main.cpu is None else main.cpu.thread_ns / 1e9
    n_calls = CALLS_PER_S * max(0.0, thread_s - main.operators_ns() / 1e9)
    per_step_s = (n_ops * EVENT_S + n_calls * CALL_S) / max(n_recorded, 1)
    return per_step_s + max(0.0, n_ops * EVENT_S - stop_s)


class Events:
    """How many events a recording has so far, at most, by the growth of the heap since it began.

    torch collects events in blocks of about a thousand. So a large block that the program has
    allocated, such as a tensor, is no more than a thousand events.

    Source: ``AppendOnlyList`` in ``torch/csrc/profiler/containers.h``.
    """

    def __init__(self) -> None:
        self._heap = Heap()
        self._began = self._heap.in_use()

    def at_most(self) -> float:
        """Return a number that is not exceeded; infinity where the heap is not known."""
        now, began = self._heap.in_use(), self._began
        if now is None or began is None:
            return float("inf")
        in_all = max(0, now[0] + now[1] - began[0] - began[1]) / EVENT_BYTES
        in_arenas = max(0, now[0] - began[0]) / EVENT_BYTES
        return min(in_all, in_arenas + EVENTS_PER_BLOCK * (1 + max(0, now[2] - began[2])))
