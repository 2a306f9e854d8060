"""Samples the Python stacks of the thread whose steps are recorded, over as many steps as it takes.

The recorded steps of a loop are few and have no stacks, as those slow down what they explain. So
the time between operators has no name. Samples give it one, at less than a hundredth of the time: a
step of 10 ms has none or one, and a hundred of them together know each function's share to a few
percent. They are taken over the recorded steps and those that follow.

A step waits for whatever its thread waits for, so a sample of a waiting thread counts too, and so
does one that had to wait until a function in C let it in: it stands for the time since the sample
before. Time in profkit's own functions, which start and stop the recording, is in no step: torch's
profiler lets no other thread in while it starts, so the next sample may be long after that.
"""

import time
from enum import Enum, auto
from typing import Final

from profkit.capture.process.cpu_time import CpuClock
from profkit.capture.process.stack_sampler import StackSample, StackSampler
from profkit.capture.process.thread_stacks import Calls
from profkit.capture.recording.sampled_calls import (
    StackTime,
    add_time,
    find_sampled_calls,
    in_collection,
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
        pause_ns: The pause before the step that goes on.
        paused_ns: All pauses before the last step that has ended.
        unsampled_ns: Time between the last sample and the end of that step.
    """

    began_ns = ended_ns = pause_ns = paused_ns = unsampled_ns = 0

    @property
    def steps_ns(self) -> int:
        """Return the time of the steps that have ended."""
        return self.ended_ns - self.began_ns - self.paused_ns

    def end_step(self, now_ns: int) -> None:
        """End a step."""
        self.paused_ns += self.pause_ns
        self.pause_ns, self.ended_ns = 0, now_ns


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
        self._n_samples = self._n_steps = 0
        self._sampled_ns = 0
        self._times = _StepTimes()
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
        if not self._sampler.start():
            self._state = _State.OVER

    def count(self, n_steps: int) -> None:
        """Count unrecorded steps that have ended before the one that :meth:`step_ended` ends."""
        if self._state is _State.SAMPLING:
            self._n_steps += n_steps

    def step_begins(self) -> None:
        """Leave the time since the last step ended out, such as that of starting a recording."""
        pause_ns = time.perf_counter_ns() - self._times.ended_ns
        if self._state is not _State.SAMPLING or pause_ns < _PAUSE_NS:
            return
        self._in_step = []
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
        self._n_steps += 1
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
        if not functions or not self._n_steps or steps_ns <= 0:
            return None

        return SampledTime(
            interval_ns=round(self._sampler.least_s * _S_NS),
            n_samples=self._n_samples,
            running_ns=sampled_ns - own_ns,
            functions=functions,
            n_steps=self._n_steps,
            steps_ns=steps_ns,
        )

    def _add(self, samples: list[StackSample]) -> None:
        """Take a sample, in the thread that samples."""
        sample = next((sample for sample in samples if sample.thread == self._thread), None)
        if sample is None or self._state is not _State.SAMPLING:
            return

        elapsed_ns = max(0, sample.time_ns - self._sampled_ns)
        self._sampled_ns = sample.time_ns
        spent = time_of_sample(sample, elapsed_ns)
        calls = in_collection(sample.calls)
        instruction = sample.instruction if calls is sample.calls else -1
        self._in_step.append((calls, instruction, spent, sample.time_ns))

    def _add_span(self, begin_ns: int, end_ns: int) -> None:
        """Add the time that a sample represents to the sampled time."""
        if self._spans and begin_ns <= self._spans[-1][1]:
            begin_ns, _ = self._spans.pop()
        self._spans.append((begin_ns, end_ns))

    def _count(self, calls: Calls, instruction: int, spent: StackTime) -> None:
        """Add a sample to those of its stack."""
        self._n_samples += 1
        add_time(self._stacks, (calls, instruction), spent, _MAX_STACKS)
