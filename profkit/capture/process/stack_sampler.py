"""Samples the Python stacks of all threads, at a bounded cost: what ran where no steps are known.

A thread of its own looks at the stacks every few milliseconds, at irregular intervals, so that they
do not fall in step with the program. Whether a thread runs is known by its processor clock: it has
to advance in the fifth of a millisecond after the stack was read, in Python or in an operator. A
thread that waits for a lock, a timer or I/O does not count, nor one that has no core.

Python lets another thread in after its switch interval or when a thread waits. With the default of
5 ms, functions that take less between two operators would never be seen: every sample would be
where an operator lets the sampler in. So it is ``short_turns.SWITCH_S`` while the sampler waits, a
single thread of the program runs and functions are counted, unless the program sets another one;
several would take turns so often that they lose much of their time. The system's timers would add
50 µs, so the sampling thread has them wake it at once. What remains is the time that the system
takes to wake a thread, 0.1 ms on a virtual machine. There, functions in Python that took 63% and
84% of a loop beside operators, 0.15 and 0.45 ms at a time, had 30% and 68% of the samples; with an
interval of 0.2 ms they had 0% and 37%. Threads that were not started by ``threading`` have no known
clock: they run where their stack has changed.

What a sample allocates must not begin a garbage collection: that would run finalizers of the
program in this thread. The thread is not one of ``threading``, since programs wait for all of
those.

Source: ``MAKE_THREAD_CPUCLOCK`` in Linux's ``include/linux/posix-timers.h``: the clock of a thread
that has ended is an error; ``PR_SET_TIMERSLACK`` in prctl(2).
"""

import contextlib
import ctypes
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from profkit.capture.process import own_threads, program_profilers, short_turns
from profkit.capture.process.collections_held import without_collection
from profkit.capture.process.stack_counts import StackCount, StackCounts
from profkit.capture.process.thread_stacks import Calls, Place, calls_of, read_idents, read_stack
from profkit.dataclass import dataclass

INTERVAL_S: Final = 0.02
MAX_SHARE: Final = 0.01
"""The interval grows until the sampling thread takes no more than this share of a core. The program
loses about as much again, as it has to wait for its turn and begin anew. Measured: 1.5% in all."""
_NAP_S: Final = 0.0002
_MIN_ACTIVE: Final = 0.05
"""A thread that has run for less of the time since the sample before, as to pass on a batch, hardly
takes turns."""
_LOOKS_APART: Final = 10
"""Looks at a single running thread, after several have run, until turns are short again."""
_MIN_CALL_S: Final = 0.001
"""A thread that is let in this much later than it asks for waited for a call without frame."""
_MIN_RUNNING: Final = 0.5
"""Share of that time for which the clock of a running thread advances, once it has a core."""
_WAITS: Final = {
    ("selectors.py", "select"),
    ("threading.py", "wait"),
    ("threading.py", "_wait_for_tstate_lock"),
    ("socket.py", "accept"),
    ("socket.py", "readinto"),
    ("thread.py", "_worker"),
}
"""Files and functions of the standard library that do nothing but wait: their threads may just have
begun to run again."""
_LATEST: Final = 0.1
"""Weight of the latest sample in the mean cost of one."""
_FIRST_S: Final = 0.0001
"""The processor time of a sample until some have been taken."""
_FREE_S: Final = 0.01
"""Processor time that samples may take in any run, so that one of a second has thirty of them and
its report names functions."""
_MAX_RATIO: Final = 4.0
"""A sample that takes longer than so many times the mean counts as this. Where a call keeps
Python's lock for half a second, as when torch's profiler starts, the sampling thread wakes up after
each switch interval in vain and takes 10 ms instead of 0.3: as the first sample, that would leave
three samples for the next three seconds."""
_PROFKIT: Final = "profkit"
"""The names of profkit's own threads begin with this."""
_PR_SET_TIMERSLACK: Final = 29
_OF_THREAD: Final = 6
"""``CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED``."""

_running: Final[set["StackSampler"]] = set()
_forked: Final[dict[int, int]] = {}
"""The system's id, by the ident, of the thread that a forked child began with. Up to Python 3.11,
``threading`` has the parent's there."""


@dataclass(frozen=True)
class StackSample:
    """What one thread did at one time.

    Attributes:
        time_ns: Nanoseconds since 1970, by a clock that is never set back.
        name: The thread's name; empty where Python does not know it.
        is_running: Whether it used a core.
        instruction: Where the innermost frame is in its bytecode, as in ``frame.f_lasti``.
        is_in_call: Whether it was in a call that has no frame, such as of a function in C. It is
            known where the thread waited, ran without Python's lock, or kept the lock for longer
            than any of Python's own instructions takes.
    """

    time_ns: int
    thread: int
    name: str
    calls: Calls
    is_running: bool
    instruction: int = -1
    is_in_call: bool = False


class StackSampler:
    """Samples stacks between :meth:`start` and :meth:`stop`, which may follow each other again.

    Nothing is sampled while the program has a debugger, or a profiler of Python calls.

    Args:
        interval_s: Mean time between samples.
        on_sample: Called in the sampling thread with the stacks of all threads at one time, also of
            those that wait.
        has_short_turns: Whether the switch interval is shortened: shares of functions need it, and
            what a thread did last does not.
        max_share: The interval grows until sampling takes no more than this share of a core.

    Attributes:
        has_short_turns: As above.
        n_samples: Times at which the stacks of all threads were read.
        sampled_ns: Time from the first start to the last sample, without the time between a stop
            and the next start.
    """

    def __init__(
        self,
        interval_s: float = INTERVAL_S,
        on_sample: Callable[[list[StackSample]], object] = lambda _samples: None,
        *,
        has_short_turns: bool = True,
        max_share: float = MAX_SHARE,
    ) -> None:
        self.has_short_turns = has_short_turns
        self.n_samples = self.sampled_ns = 0
        self._on_sample = on_sample
        self._pacing = _Pacing(interval_s, max_share)
        self._counts = StackCounts()
        self._last_look = _LastLook()
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()
        self._turn = self._n_crowded = 0
        self._active: set[int] = set()
        self._has_given_way = False

    @property
    def least_s(self) -> float:
        """Return the interval that was requested."""
        return self._pacing.least_s

    @property
    def interval_s(self) -> float:
        """Return the interval as it is now: larger where stacks are deep or threads are many."""
        return self._pacing.interval_s

    @property
    def n_left_out(self) -> int:
        """Return how many samples of running threads are in no count: there are too many stacks."""
        return self._counts.n_left_out

    @property
    def is_on(self) -> bool:
        """Return whether it samples, in this process."""
        return self in _running

    def start(self, *, looks_for_profilers: bool = True) -> bool:
        """Begin to sample; returns whether it does: a debugger or profiler wins, for good.

        Args:
            looks_for_profilers: Whether to look for a profiler of Python calls among all objects.
        """
        if self.is_on or self._has_given_way:
            return self.is_on

        is_traced = (
            sys.gettrace() is not None or getattr(threading, "_trace_hook", None) is not None
        )
        # For good: to search for profilers may take a tenth of a second, and this is called often.
        self._has_given_way |= is_traced or (
            looks_for_profilers and bool(program_profilers.find_python_profiler())
        )
        if self._has_given_way:
            return False

        # A thread of an earlier turn may still sleep; it ends when it sees that its turn is over.
        self._turn += 1
        self._last_look.forget()
        _running.add(self)
        turn = self._turn
        if not own_threads.start(lambda: self._run(turn)):
            _leave(self)
        return self.is_on

    def stop(self) -> None:
        """Sample no more. What was counted stays, and is added to after another start.

        The thread ends when it wakes up the next time.
        """
        _leave(self)

    def counts(self) -> list[StackCount]:
        """Return the stacks of running threads, without frames of profkit; most time first."""
        return self._counts.read()

    def _run(self, turn: int) -> None:
        """Sample until the stop after the start of this turn."""
        # Made here, as a bound method is an object that the garbage collector counts.
        look, count = self._look, self._count
        try:
            without_collection(_wake_at_once)
            while True:
                self._sleep(self._pacing.begin_pause())
                if turn != self._turn or not self.is_on:
                    break

                began_s = time.thread_time()
                without_collection(look)
                self._sleep(_NAP_S)
                without_collection(count)
                self._pacing.add_cost(time.thread_time() - began_s)
        except Exception:  # noqa: BLE001  (no error of ours is shown in the program)
            self._has_given_way = True
            _leave(self)

    def _sleep(self, seconds: float) -> None:
        """Sleep, and let the program's turns be short meanwhile: they end with the sleep."""
        if self.has_short_turns and self.is_on and not self._n_crowded:
            short_turns.begin()
        time.sleep(seconds)

    def _look(self) -> None:
        """Read the stacks of all threads, and their clocks."""
        # At once: a thread that had to let this one in waits for no more than a short turn.
        stacks = {ident: read_stack(ident) for ident in self._active}
        turn_s = sys.getswitchinterval()
        if self.has_short_turns:
            short_turns.restore()

        last_look = self._last_look
        now_ns = last_look.begin()
        # Python's own instructions let this thread in after a switch interval.
        late_s = time.perf_counter() - self._pacing.due_s
        is_late = late_s > 2 * turn_s + _MIN_CALL_S
        self.n_samples += 1
        self.sampled_ns += last_look.elapsed_ns

        threads = {thread.ident: thread for thread in threading.enumerate()}
        looks, n_active = last_look.threads, 0
        self._active = set()
        for ident in read_idents():
            thread = threads.get(ident)
            name = "" if thread is None else thread.name
            if own_threads.is_own(ident) or name.startswith(_PROFKIT):
                continue
            look = self._look_at(ident, thread, stacks)
            if look is not None:
                look.is_in_call = is_late
                looks.append(look)
                n_active += last_look.takes_turns(look)

        # Threads that run now and then would take turns too often until the next look.
        self._n_crowded = _LOOKS_APART if n_active > 1 else max(0, self._n_crowded - 1)

        # This thread has Python's lock: one that runs meanwhile is in code that needs none.
        last_look.ended_ns = time.perf_counter_ns()
        for look in looks:
            look.is_in_call |= _has_run(look, last_look.ended_ns - now_ns)

    def _look_at(
        self, ident: int, thread: threading.Thread | None, stacks: dict[int, list[Place]]
    ) -> "_Look | None":
        """Read a thread's clock and, if it has run since the look before, its stack.

        Args:
            thread: The thread, or None if it was not started by ``threading``.
            stacks: Stacks that were read before this.

        Returns:
            What it does, or None if it has ended.
        """
        clock = None if thread is None else _clock_of(_forked.get(ident, thread.native_id))
        before, clock_ns = self._last_look.seen.get(ident), _read(clock)
        if before is not None and clock_ns is not None and clock_ns == before.clock_ns:
            calls, position = before.calls, before.position
        else:
            places = stacks.get(ident) or read_stack(ident)
            if not places:
                return None
            code, _, instruction, trace = places[0]
            if trace is not None:
                raise _HasDebuggerError
            calls = self._counts.shared(tuple(calls_of(places)))
            position = id(code), instruction
            self._active.add(ident)

        name = "" if thread is None else thread.name
        look = _Look(ident, name, clock, clock_ns, position, calls)
        look.is_running = clock_ns is None and (before is None or before.position != position)
        return look

    def _count(self) -> None:
        """Count the threads that run: their clocks have advanced since then."""
        last_look = self._last_look
        nap_ns = time.perf_counter_ns() - last_look.ended_ns
        time_ns = self._epoch_ns + last_look.began_ns

        samples = []
        for look in last_look.threads:
            now_ns = _read(look.clock)
            if now_ns is not None and look.clock_ns is not None:
                look.is_running = now_ns - look.clock_ns >= _MIN_RUNNING * nap_ns
                look.clock_ns = now_ns
            look.is_running &= not _is_waiting(look.calls)
            if look.is_running:
                self._counts.add(look.thread, look.calls, last_look.elapsed_ns)
            samples.append(
                StackSample(
                    time_ns,
                    look.thread,
                    look.name,
                    look.calls,
                    look.is_running,
                    look.instruction,
                    look.is_in_call or not look.is_running,
                )
            )

        self._on_sample(samples)
        last_look.seen = {look.thread: look for look in last_look.threads}


class _HasDebuggerError(Exception):
    """The program is debugged."""


class _Pacing:
    """Spaces samples irregularly, so far apart that they take no more than a share of a core.

    A garbage collection may begin while these methods run, unlike in a sample. So they make no
    object that the collector counts: numbers alone.

    Args:
        least_s: The mean interval that is requested.
        max_share: The share of a core.

    Attributes:
        least_s: As above.
        interval_s: The mean interval that the cost of the samples so far allows.
        due_s: When the current pause ends, by ``time.perf_counter()``.
    """

    __slots__ = ("_cost_s", "_free_s", "_max_share", "_random", "due_s", "interval_s", "least_s")

    def __init__(self, least_s: float, max_share: float) -> None:
        self.least_s = self.interval_s = least_s
        self.due_s = 0.0
        self._max_share = max_share
        self._cost_s = _FIRST_S
        self._free_s = _FREE_S
        self._random = random.Random(0)  # noqa: S311  (and the program's numbers stay the same)

    def begin_pause(self) -> float:
        """Begin the pause before the next sample, and return its length in seconds."""
        pause_s = self.interval_s * (0.5 + self._random.random())
        self.due_s = time.perf_counter() + pause_s
        return pause_s

    def add_cost(self, cost_s: float) -> None:
        """Adapt the interval to the processor time that the latest sample has taken."""
        # `min()` and `max()` would make a tuple, which may begin a collection.
        highest_s = _MAX_RATIO * self._cost_s
        counted_s = cost_s if cost_s < highest_s else highest_s  # noqa: FURB136
        self._cost_s += _LATEST * (counted_s - self._cost_s)
        self._free_s -= counted_s
        if self._free_s > 0:
            return
        affordable_s = self._cost_s / self._max_share
        self.interval_s = affordable_s if affordable_s > self.least_s else self.least_s  # noqa: FURB136


class _LastLook:
    """The last sample of all threads, with which the next one compares.

    Attributes:
        began_ns: When it began, by ``time.perf_counter_ns()``; before it, when sampling began.
        ended_ns: When all stacks were read.
        elapsed_ns: Time from the look before, or from the start, to its begin.
        threads: What it saw of each thread.
        seen: The same by the thread's ident, once the running ones are counted.
    """

    __slots__ = ("began_ns", "elapsed_ns", "ended_ns", "seen", "threads")

    def __init__(self) -> None:
        self.began_ns = self.ended_ns = self.elapsed_ns = 0
        self.threads: list[_Look] = []
        self.seen: dict[int, _Look] = {}

    def forget(self) -> None:
        """Forget what was seen before a start: no time has elapsed since, and nothing is known."""
        self.began_ns, self.seen = time.perf_counter_ns(), {}

    def begin(self) -> int:
        """Begin the next look, and return the time."""
        now_ns = time.perf_counter_ns()
        self.elapsed_ns, self.began_ns = now_ns - self.began_ns, now_ns
        self.threads = []
        return now_ns

    def takes_turns(self, look: "_Look") -> bool:
        """Return whether a thread has run for so long since the look before that it takes turns."""
        before = self.seen.get(look.thread)
        if before is None or before.clock_ns is None or look.clock_ns is None:
            return look.is_running
        return look.clock_ns - before.clock_ns >= _MIN_ACTIVE * self.elapsed_ns


class _Look:
    """A thread at one sample, with no reference to anything of the program but strings."""

    __slots__ = (
        "calls",
        "clock",
        "clock_ns",
        "is_in_call",
        "is_running",
        "name",
        "position",
        "thread",
    )

    def __init__(
        self,
        thread: int,
        name: str,
        clock: int | None,
        clock_ns: int | None,
        position: tuple[int, int],
        calls: Calls,
    ) -> None:
        self.thread, self.name, self.clock, self.clock_ns = thread, name, clock, clock_ns
        self.position, self.calls = position, calls
        self.is_running = self.is_in_call = False

    @property
    def instruction(self) -> int:
        """Return where the innermost frame is in its bytecode."""
        return self.position[1]


def _is_waiting(calls: Calls) -> bool:
    """Return whether the innermost call does nothing but wait; also where there is none."""
    if not calls:
        return True
    file, _, function = calls[-1]
    return (os.path.basename(file), function) in _WAITS  # noqa: PTH119  (a Path takes 5 µs)


def _clock_of(native_id: int | None) -> int | None:
    """Return the processor clock of a thread, or None where the system has none."""
    is_known = native_id is not None and sys.platform == "linux"
    return (~native_id << 3) | _OF_THREAD if native_id is not None and is_known else None


def _read(clock: int | None) -> int | None:
    """Read the nanoseconds of processor time; None without a clock, or if the thread has ended."""
    if clock is None:
        return None
    try:
        return time.clock_gettime_ns(clock)
    except OSError:
        return None


def _has_run(look: "_Look", elapsed_ns: int) -> bool:
    """Return whether a thread has used a core since its clock was read, ``elapsed_ns`` ago."""
    clock_ns = _read(look.clock)
    if clock_ns is None or look.clock_ns is None:
        return False
    return clock_ns - look.clock_ns >= _MIN_RUNNING * elapsed_ns


def _wake_at_once() -> None:
    """Have the system wake this thread when its time has come, and not with the next timer."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def _leave(sampler: StackSampler) -> None:
    """Forget a sampler. The last one that shortens the switch interval restores it."""
    _running.discard(sampler)
    if not any(running.has_short_turns for running in _running):
        short_turns.restore()


def _after_fork() -> None:
    """Stop all samplers in a forked child, which has no thread that samples."""
    _forked[threading.get_ident()] = threading.get_native_id()
    for sampler in tuple(_running):
        _leave(sampler)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
