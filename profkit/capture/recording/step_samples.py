"""Samples the Python stacks of the thread whose steps are recorded, over as many steps as it takes.

The recorded steps of a loop are few and have no stacks, as those slow down what they explain. So
the time between operators has no name. Samples give it one, at less than a hundredth of the time: a
step of 10 ms has none or one, and a hundred of them together know each function's share to a few
percent. They are taken over the recorded steps and those that follow.

A step waits for whatever its thread waits for, so a sample of a waiting thread counts too, and so
does one that had to wait until a function in C let it in: it stands for the time since the sample
before. Garbage collections let no sample in, and may take all of the time between samples: their
times are exact, and belong to where the thread is when the next sample is let in right after one.
Time in profkit's own functions, which start and stop the recording, is in no step: torch's
profiler lets no other thread in while it starts, so the next sample may be long after that.
"""

import time
from enum import Enum, auto
from typing import Final

from profkit.capture.process.cpu_time import CpuClock
from profkit.capture.process.garbage_collections import CollectionTimes
from profkit.capture.process.stack_sampler import StackSample, StackSampler
from profkit.capture.process.thread_stacks import Calls
from profkit.capture.recording.sampled_calls import (
    StackTime,
    add_time,
    find_sampled_calls,
    is_own,
    time_of_sample,
)
from profkit.capture.source.files import SourceFiles
from profkit.model.capture_info import SampledTime

ENOUGH_SAMPLES: Final = 100
"""A share of one half is then known to a tenth, at two standard errors."""
MAX_NS: Final = 3_000_000_000
MAX_SHARE: Final = 0.005
"""The share of a core that the samples take. The program loses about as much again."""
_S_NS: Final = 1_000_000_000
_PAUSE_NS: Final = 1_000_000
"""Less time between two steps does not matter for their samples."""
_MAX_STACKS: Final = 10_000
_RIGHT_AFTER_NS: Final = 1_000_000
_RIGHT_AFTER_SHARE: Final = 0.1
"""A sample that follows a collection so soon, or after so small a share of the collection's time,
had to wait for its end. On a busy machine the sampling thread also waits for a core."""


Span = tuple[int, int]
"""A begin and an end, in nanoseconds since 1970."""


class _State(Enum):
    """What :class:`StepSamples` does."""

    READY = auto()
    SAMPLING = auto()
    OVER = auto()


class _StepTimes:
    """When the sampled steps began and ended, and the pauses between them.

    Attributes:
        n_steps: Steps that have ended.
        pause_ns: The pause before the step that goes on.
        paused_ns: All pauses before the last step that has ended.
        unsampled_ns: Time between the last sample and the end of that step.
    """

    n_steps = began_ns = ended_ns = pause_ns = paused_ns = unsampled_ns = 0

    @property
    def steps_ns(self) -> int:
        """Return the time of the steps that have ended."""
        return self.ended_ns - self.began_ns - self.paused_ns

    def end_step(self, now_ns: int) -> None:
        """End a step."""
        self.n_steps += 1
        self.paused_ns += self.pause_ns
        self.pause_ns, self.ended_ns = 0, now_ns


class _CollectedTime:
    """Time of garbage collections, and the time outside of them that has no sample yet.

    Args:
        thread: The sampled thread.
        interval_s: Mean time between samples.
    """

    def __init__(self, thread: int, interval_s: float) -> None:
        self.times = CollectionTimes(thread)
        self._interval_ns = round(interval_s * _S_NS)
        self._collected_ns = self._outside_ns = 0

    def part(self, begin_ns: int, end_ns: int) -> tuple[int, StackTime | None]:
        """Part the time since the sample before, of a sample at its end.

        Returns:
            The time outside of collections that the sample stands for, and the time of collections
            if it stands for that: then it was let in only by the end of one.
        """
        collections = [*self.times.take(end_ns)]
        collected_ns = sum(max(0, end - max(begin, begin_ns)) for begin, end in collections)
        self._collected_ns += collected_ns
        self._outside_ns += max(0, end_ns - begin_ns - collected_ns)

        if collections and _is_right_after(*collections[-1], end_ns):
            ns, self._collected_ns = self._collected_ns, 0
            # As many as there would have been, had the collections let samples in.
            return 0, StackTime(n=max(1, ns // self._interval_ns), ns=ns, in_call_ns=ns)

        outside_ns, self._outside_ns = self._outside_ns, 0
        return outside_ns, None

    def forget(self) -> None:
        """Forget the time of an interval that counts in no step."""
        self._collected_ns = self._outside_ns = 0


def _is_right_after(begin_ns: int, end_ns: int, sampled_ns: int) -> bool:
    """Return whether a sample had to wait for the end of a collection."""
    return sampled_ns - end_ns < _RIGHT_AFTER_NS + _RIGHT_AFTER_SHARE * (end_ns - begin_ns)


class StepSamples:
    """Samples one thread from the first boundary of its steps until there are enough samples.

    The methods are called by the thread itself.

    Args:
        thread: Its ident, as of ``threading.get_ident()``.
    """

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._state = _State.READY
        self._sampler = StackSampler(on_sample=self._add, max_share=MAX_SHARE)
        self._in_step: list[tuple[Calls, int, StackTime, int]] = []
        self._spans: list[Span] = []
        self._stacks: dict[tuple[Calls, int], StackTime] = {}
        self._n_samples = 0
        self._sampled_ns = 0
        self._times = _StepTimes()
        self._collections = _CollectedTime(thread, self._sampler.least_s)
        self._clock: CpuClock | None = None
        self._waiting_share = 1.0

    @property
    def is_over(self) -> bool:
        """Return whether it samples no more, so that no further step needs to be reported."""
        return self._state is _State.OVER

    def begin(self) -> None:
        """Begin to sample, where a step begins.

        Nothing is sampled in a program with a debugger, or a profiler of Python calls.
        """
        if self._state is not _State.READY:
            return
        self._times.began_ns = self._times.ended_ns = time.perf_counter_ns()
        self._sampled_ns = time.time_ns()
        self._clock = CpuClock()
        self._state = _State.SAMPLING
        if self._sampler.start():
            self._collections.times.begin()
        else:
            self._state = _State.OVER

    def count(self, n_steps: int) -> None:
        """Count unrecorded steps that have ended before the one that :meth:`step_ended` ends."""
        if self._state is _State.SAMPLING:
            self._times.n_steps += n_steps

    def step_begins(self) -> None:
        """Leave the time since the last step ended out, such as that of starting a recording."""
        pause_ns = time.perf_counter_ns() - self._times.ended_ns
        if self._state is not _State.SAMPLING or pause_ns < _PAUSE_NS:
            return
        self._in_step = []
        self._collections.forget()
        self._times.pause_ns = pause_ns
        # The next sample also represents what was not sampled yet of the step before.
        self._sampled_ns = time.time_ns() - self._times.unsampled_ns

    def step_ended(self, is_recorded: bool) -> None:  # noqa: FBT001  (the state of one step)
        """Count the samples of a step, and stop where that makes enough of them.

        Args:
            is_recorded: Whether torch recorded the step; such steps count even when there are
                enough samples, as the samples are to explain them.
        """
        if self._state is not _State.SAMPLING:
            return

        # Only now: samples of a step that is never completed are dropped.
        in_step, self._in_step = self._in_step, []
        for calls, instruction, spent, at_ns in in_step:
            self._count(calls, instruction, spent)
            self._add_span(at_ns - spent.ns, at_ns)
        self._times.end_step(time.perf_counter_ns())
        self._times.unsampled_ns = max(0, time.time_ns() - self._sampled_ns)

        has_enough = self._n_samples >= ENOUGH_SAMPLES and not is_recorded
        is_long = self._times.ended_ns - self._times.began_ns >= MAX_NS
        if has_enough or is_long or not self._sampler.is_on:
            self.stop()

    def stop(self) -> None:
        """Sample no more; what was sampled since the last boundary is dropped."""
        if self._state is not _State.SAMPLING:
            return
        self._state = _State.OVER
        self._sampler.stop()
        self._collections.times.end()
        self._in_step = []

        # By the system's accounts, as a sample also counts as waiting where there was no core.
        used = None if self._clock is None else self._clock.read()
        if used is not None and used.waiting_ns is not None:
            self._waiting_share = used.waiting_ns / max(1, used.window_ns)

    @property
    def spans(self) -> list[Span]:
        """Return the time in steps that the samples represent, in order."""
        return list(self._spans)

    def summarize(self) -> SampledTime | None:
        """Sum up the lines of user code that ran, and what they called; None without samples."""
        files = SourceFiles()
        own_ns = sum(spent.ns for (calls, _), spent in self._stacks.items() if is_own(calls, files))
        sampled_ns = sum(spent.ns for spent in self._stacks.values())
        functions = find_sampled_calls(self._stacks, files, self._waiting_share * sampled_ns)

        steps_ns = self._times.steps_ns - own_ns
        if not functions or not self._times.n_steps or steps_ns <= 0:
            return None

        return SampledTime(
            interval_ns=round(self._sampler.least_s * _S_NS),
            n_samples=self._n_samples,
            running_ns=sampled_ns - own_ns,
            functions=functions,
            n_steps=self._times.n_steps,
            steps_ns=steps_ns,
        )

    def _add(self, samples: list[StackSample]) -> None:
        """Take a sample, in the thread that samples."""
        sample = next((sample for sample in samples if sample.thread == self._thread), None)
        if sample is None or self._state is not _State.SAMPLING:
            return

        outside_ns, collected = self._collections.part(self._sampled_ns, sample.time_ns)
        self._sampled_ns = sample.time_ns
        spent = collected or time_of_sample(sample, outside_ns)
        self._in_step.append((sample.calls, sample.instruction, spent, sample.time_ns))

    def _add_span(self, begin_ns: int, end_ns: int) -> None:
        """Add the time that a sample represents to the sampled time."""
        if self._spans and begin_ns <= self._spans[-1][1]:
            begin_ns, _ = self._spans.pop()
        self._spans.append((begin_ns, end_ns))

    def _count(self, calls: Calls, instruction: int, spent: StackTime) -> None:
        """Add a sample to those of its stack."""
        self._n_samples += spent.n
        add_time(self._stacks, (calls, instruction), spent, _MAX_STACKS)
