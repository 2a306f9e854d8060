"""How much of a program's run can be recorded, by what that costs.

Most of what a recording costs comes after its end: events are collected, written, joined with
source lines, and analyzed. That is proportional to the events, of which a program with many small
operators makes a thousand times as many in the same time as another one.

torch tells their number only after the end. Meanwhile two bounds are known: each event takes memory
until the recording is stopped, so that the growth of the heap bounds their number; and a thread
makes no more than so many per second. The heap also grows by what the program allocates, so that
there may be far fewer. One step is recorded whatever it costs.

Seconds are those of the processor on which these costs were measured: on one that takes twice as
long for everything, a second is two, and as many events are affordable.
"""

import time
from collections.abc import Callable
from typing import Final

from profkit.capture.process.malloc_stats import Heap
from profkit.capture.recording.call_counter import CallCounter
from profkit.capture.recording.profiler import ProfilerRecording

FREE_S: Final = 1.0
"""CPU seconds that recording may cost any run, so that short ones have a report."""
MAX_SHARE: Final = 0.1
"""Share of the run's CPU time so far that it may cost beyond that."""
EVENT_S: Final = 28e-6
"""What an event costs in all. Measured: 21 to 29 µs, of which 5 to 8 µs are those of stopping."""
STOP_EVENT_S: Final = 6.5e-6
"""What stopping a recording takes per event."""
MAX_COUNTED: Final = 100_000
"""More events are not counted, in 2 µs each, where the time of stopping tells too few apart."""
EVENT_BYTES: Final = 270
"""The least heap memory that an event takes. Measured: 274 to 560 bytes with some thousand events
or more."""
EVENTS_PER_BLOCK: Final = 1024
"""Events of one kind and thread that torch collects in a block."""
EVENTS_PER_S: Final = 300_000
"""Operators and allocations that a busy thread records at most per second of its CPU time."""
CALLS_PER_S: Final = 20_000_000
"""Python calls that it makes at most. Measured: 8 to 17 million calls of ``abs`` and the like."""
CALL_S: Final = 8e-6
"""What a recorded Python call costs in all: it is in no file, only looked through for lines."""


class RecordingBudget:
    """How much of a run can be recorded.

    Args:
        now_s: Returns the CPU time of the process so far, in seconds of this processor.
        spent_s: Returns what recording has cost so far, in the same.
        slowness: How many times as long this processor takes as the measured one.

    Attributes:
        slowness: The same.
    """

    def __init__(
        self,
        now_s: Callable[[], float] = time.process_time,
        spent_s: Callable[[], float] = lambda: 0.0,
        slowness: float = 1.0,
    ) -> None:
        self.slowness = slowness
        self._now_s = now_s
        self._spent_s = spent_s

    def left_s(self) -> float:
        """Return what further recording may cost now, in seconds of the measured processor."""
        now_s, spent_s = self._now_s() / self.slowness, self._spent_s() / self.slowness
        return max(FREE_S, MAX_SHARE * now_s) - spent_s


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
        self._counter = CallCounter()
        self._events_s = self._n_calls = 0.0

    def recording_begins(self) -> None:
        """Note that steps are recorded from now on."""
        self._events, self._began_s = Events(), self._thread_s()
        self._events_s = self._n_calls = 0.0

    def affords_step(self, n_recorded: int) -> bool:
        """Return whether another step is affordable after some that cost about the same.

        Args:
            n_recorded: Steps that have been recorded since :meth:`recording_begins`; at least 1.
        """
        thread_s = (self._thread_s() - self._began_s) / self._budget.slowness
        n_events = min(self._events.at_most(), EVENTS_PER_S * thread_s)
        return EVENT_S * n_events * (n_recorded + 1) / n_recorded <= self._budget.left_s()

    def recording_ended(self, main: ProfilerRecording, n_recorded: int) -> None:
        """Note what was recorded, and count the calls of the next step if much depends on them.

        A step with stacks records each Python call. There are at most as many as a thread makes in
        the time that it has spent outside of operators, and often a hundredth of that.

        Args:
            main: The recorded steps, stopped.
            n_recorded: Their number.
        """
        stop_s = main.cost.stop_cpu_ns / 1e9 / self._budget.slowness
        # Those of devices are collected at the stop, which took 15 µs per event on an H100.
        n_events = main.cost.n_exported or stop_s / STOP_EVENT_S
        self._events_s = _cost_of_events_s(n_events, stop_s, n_recorded)
        self._n_calls = _most_calls(main, self._budget.slowness) / max(n_recorded, 1)
        if self._lines_s() <= self._budget.left_s():
            return

        if not main.cost.n_exported and n_events <= MAX_COUNTED:
            self._events_s = _cost_of_events_s(main.count_events(), stop_s, n_recorded)
        # Counted even where the events alone are too dear yet: a long run affords them later, and
        # never the most calls that a step can have.
        self._counter.start()

    def affords_lines(self) -> bool:
        """Return whether a step with stacks is affordable, besides the recorded ones."""
        n_calls = self._counter.stop()
        if n_calls is not None:
            self._n_calls = n_calls
        return self._lines_s() <= self._budget.left_s()

    def end(self) -> None:
        """Count no calls any more: nothing further will be recorded."""
        self._counter.stop()

    def _lines_s(self) -> float:
        """Return what a step with stacks costs at most, with the rest of the recorded ones."""
        return self._events_s + CALL_S * self._n_calls


def _cost_of_events_s(n_events: float, stop_s: float, n_recorded: int) -> float:
    """Return what a further step costs without its calls, with the rest of the recorded ones.

    Args:
        n_events: Events of the recorded steps.
        stop_s: What stopping their recording took.
    """
    rest_s = max(0.0, n_events * EVENT_S - stop_s)
    return n_events * EVENT_S / max(n_recorded, 1) + rest_s


def _most_calls(main: ProfilerRecording, slowness: float) -> float:
    """Return how many calls the thread can have made at most while it was recorded."""
    thread_ns = 0 if main.cpu is None else main.cpu.thread_ns
    return CALLS_PER_S * max(0, thread_ns - main.operators_ns()) / 1e9 / slowness


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
