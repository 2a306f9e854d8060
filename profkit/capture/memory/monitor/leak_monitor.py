"""Monitors a program's memory from step to step, within a budget, and reports leaks at the end.

Most step boundaries cost one comparison. At some a sample is taken, which scans young objects. Only
if growth is seen are allocation sites sampled for a few steps, and holders searched. What is done
at the end of which step is decided in :mod:`profkit.capture.memory.monitor.monitor_states`.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from profkit.capture.memory.monitor.budget import Budget, BudgetSpent
from profkit.capture.memory.monitor.growth_inspections import Classified, GrowthInspections
from profkit.capture.memory.monitor.host_peak import read_peak_bytes
from profkit.capture.memory.monitor.instruments import Instruments
from profkit.capture.memory.monitor.live_tensors import MAX_STORAGES
from profkit.capture.memory.monitor.loader_workers import MIN_UNCERTAIN_BYTES
from profkit.capture.memory.monitor.monitor_states import (
    RESTS,
    Evaluated,
    HeapBegun,
    HostScanned,
    Inspected,
    LinesBegun,
    MeasuringAdvanced,
    MonitorAction,
    MonitorEvent,
    MonitorFailed,
    MonitorFinished,
    MonitorPhase,
    MonitorState,
    RecordingStopped,
    Sampled,
    SitesAnswered,
    SitesChecked,
    SitesRecorded,
    StepEnded,
    TraceBegan,
    TracingAdvanced,
    next_action,
)
from profkit.capture.memory.monitor.sampler import MAX_NODES
from profkit.capture.memory.monitor.series import Lack
from profkit.capture.process import console, environment, signals
from profkit.capture.process.torch_features import shows_saved_tensors
from profkit.model.live_memory import Leak, LiveMemory
from profkit.units import format_bytes


class LeakMonitor:
    """Monitors the memory of a program, or of a block of it.

    Args:
        name: The capture's name.
        step_definition: What ends a step.
        budget: Limits of the overhead.
        may_sample_sites: Called before allocation sites are sampled, which would disturb a trace.
        is_tracing: Whether a trace is being recorded, whose memory is not the program's.
        tracemalloc: Whether to attribute Python objects to source lines, which is costly.

    Attributes:
        n_steps: Steps that have ended.
    """

    def __init__(
        self,
        name: str,
        step_definition: str,
        budget: Budget | None = None,
        may_sample_sites: Callable[[], bool] = lambda: True,
        is_tracing: Callable[[], bool] = lambda: False,
        *,
        tracemalloc: bool = False,
    ) -> None:
        self.name = name
        self.step_definition = step_definition
        self.n_steps = 0
        self._pid = os.getpid()
        self._state = MonitorState()
        self._next_step = self._state.next_step
        self._instruments = Instruments(budget, tracemalloc=tracemalloc)
        self._inspections = GrowthInspections(self._instruments)
        self._may_sample_sites = may_sample_sites
        self._is_tracing = is_tracing
        self._not_measured: list[str] = []
        self._peak_bytes: int | None = None

    def budget_spent(self) -> BudgetSpent:
        """Return what monitoring the program has cost so far."""
        return self._instruments.clock.budget_spent()

    def follow(self, earlier: BudgetSpent) -> None:
        """Spend what an earlier monitor of the same program has left of its budget."""
        self._instruments.clock.follow(earlier)

    @property
    def is_own_process(self) -> bool:
        """Tell whether this is the process that began monitoring, and not a forked child."""
        return self._pid == os.getpid()

    def step(self) -> None:
        """Count a step that has ended."""
        self.n_steps += 1
        if self.n_steps >= self._next_step:
            self._do(self._act_at_boundary)

    @property
    def n_idle_steps(self) -> int:
        """Return how many of the next steps need only be counted, by :meth:`count`."""
        return max(self._next_step - self.n_steps - 1, 0)

    def count(self, n_steps: int) -> None:
        """Count steps that have ended, no more than :attr:`n_idle_steps`."""
        self.n_steps += n_steps

    def skip(self) -> None:
        """Count a step that was traced and must not be disturbed."""
        self.n_steps += 1
        self._do(self._stop_recording)

    def leaks(self) -> tuple[Leak, ...]:
        """Return the leaks so far; none while there are too few steps."""
        return self._classify().leaks

    def finish(self) -> LiveMemory:
        """End monitoring and return the result."""
        # Before the searches at the end, which take memory of their own.
        self._peak_bytes = read_peak_bytes()
        self._do(self._instruments.stop, even_after_failure=True)
        self._do(lambda: self._inspections.inspect_at_end(self.n_steps))
        self._do(lambda: self._instruments.scan_host_at_end(self.n_steps))

        # The result is built before all that is tracked is released, which it refers to.
        live = self._build_result(self._classify())
        self._do(self._end, even_after_failure=True)
        return live

    def discard(self) -> None:
        """End monitoring without a result."""
        self._do(self._instruments.stop, even_after_failure=True)
        self._do(self._end, even_after_failure=True)

    def _do(self, work: Callable[[], None], *, even_after_failure: bool = False) -> None:
        """Do some work in the user's process; an error of ours only ends the monitoring.

        The program's handlers of signals wait until the work is done. They run outside of the
        ``try``: an exception that one of them raises is the program's, and reaches it.
        """
        is_over = self._state.phase is MonitorPhase.GIVEN_UP and not even_after_failure
        if is_over or not self.is_own_process:
            return
        with signals.held():
            try:
                work()
            except Exception as error:  # noqa: BLE001  (a bug of ours must not end the program)
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Measure no more after an error of ours."""
        if self._state.phase is not MonitorPhase.GIVEN_UP:
            self._not_measured.append(f"Monitoring stopped at step {self.n_steps}: {error}")
            console.warn("profkit stopped monitoring memory.", error)
        self._apply(MonitorFailed())

        # Nobody stops it later, at the end of a step.
        with contextlib.suppress(Exception):
            self._instruments.stop()

    def _act_at_boundary(self) -> None:
        """Measure at the end of a step what is due, and decide what is due at the next ones."""
        instruments, step = self._instruments, self.n_steps
        was_recorded, n_to_wait = instruments.is_recording, 0

        # At the end of the first step there is neither a sample nor the time of a step.
        if self._state.phase is not MonitorPhase.UNSTARTED:
            if was_recorded and self._is_tracing():
                self._run(TraceBegan(step))
            instruments.clock.step_ended(step, sites_sampled=was_recorded)
            n_to_wait = instruments.steps_to_wait(step)

        event = StepEnded(step, was_recorded, n_to_wait)
        with instruments.sampler.excluding_boundary():
            action = self._run(event)
        if action is MonitorAction.GO_ON:
            instruments.clock.step_begins(step)

    def _stop_recording(self) -> None:
        """End what would disturb a recorded step."""
        self._instruments.sampler.note_tracing(self.n_steps)
        self._run(TraceBegan(self.n_steps))

    def _end(self) -> None:
        """Release all that is tracked; further steps are only counted."""
        self._apply(MonitorFinished())
        self._instruments.release()

    def _run(self, event: MonitorEvent) -> MonitorAction:
        """Take one action after the other until the program goes on, and return the last one."""
        action = self._apply(event)
        while action not in RESTS:
            action = self._apply(self._carry_out(action))
        return action

    def _apply(self, event: MonitorEvent) -> MonitorAction:
        """Note an event, and return what to do now."""
        self._state, action = next_action(self._state, event)
        self._next_step = self._state.next_step
        return action

    def _carry_out(self, action: MonitorAction) -> MonitorEvent:
        """Take an action, and return its outcome."""
        instruments, inspections, step = self._instruments, self._inspections, self._state.step

        outcomes: dict[MonitorAction, Callable[[], MonitorEvent]] = {
            MonitorAction.BEGIN: self._begin,
            MonitorAction.SAMPLE: self._sample,
            MonitorAction.SAMPLE_RECORDED: lambda: self._sample(was_recorded=True),
            MonitorAction.STOP_RECORDING: self._end_recording,
            MonitorAction.ADVANCE_TRACING: lambda: TracingAdvanced(
                instruments.advance_tracing(step)
            ),
            MonitorAction.ADVANCE_MEASURING: lambda: MeasuringAdvanced(
                instruments.advance_measuring(step)
            ),
            MonitorAction.CHECK_SITES: lambda: SitesChecked(inspections.lacks_sampled_sites()),
            MonitorAction.RECORD_SITES: self._record_sites,
            MonitorAction.EVALUATE: self._evaluate,
            MonitorAction.ASK_FOR_SITES: self._ask_for_sites,
            MonitorAction.INSPECT: lambda: Inspected(*inspections.inspect(step)),
            MonitorAction.SCAN_HOST: self._scan_host,
            MonitorAction.TRACE_LINES: lambda: LinesBegun(instruments.trace_lines(step)),
            MonitorAction.MEASURE_HEAP: self._measure_heap,
        }

        return outcomes[action]()

    def _begin(self) -> Sampled:
        """Begin to track tensors, and take the first sample."""
        self._instruments.begin(self._state.step)
        return self._sample()

    def _end_recording(self) -> RecordingStopped:
        self._instruments.stop_recording(self._state.step)
        return RecordingStopped()

    def _ask_for_sites(self) -> SitesAnswered:
        may_sample = self._may_sample_sites()
        return SitesAnswered(may_sample, self._inspections.sample_sites() if may_sample else 0)

    def _measure_heap(self) -> HeapBegun:
        is_allowed = self._may_sample_sites()
        is_on = is_allowed and self._instruments.measure_heap(self._state.step)
        return HeapBegun(is_allowed, is_on)

    def _sample(self, *, was_recorded: bool = False) -> Sampled:
        """Take a sample."""
        instruments, step = self._instruments, self._state.step
        was_in_threads = instruments.sites.is_in_threads
        if instruments.sites.is_on:
            instruments.sites.end(step)

        # Before the sample, so that it has what existed all the time.
        instruments.find_earlier_if_affordable(step)

        is_tracing = self._is_tracing()
        instruments.sample(step, is_tracing=is_tracing, is_heap_own=is_tracing or was_in_threads)
        if was_recorded:
            instruments.sites.retain(instruments.existed)

        return Sampled(
            is_cheap=instruments.is_cheap,
            affords_sites=instruments.clock.affords_sites(),
            is_tracing=is_tracing,
        )

    def _evaluate(self) -> Evaluated:
        """Find out whether memory grows."""
        grows = self._inspections.evaluate()
        clock = self._instruments.clock
        return Evaluated(
            grows=grows,
            affords_inspection=clock.affords("inspection"),
            affords_host=self._instruments.wants_heap_measured()
            or self._instruments.affords_host_scan(),
            can_sample_sites=grows
            and self._inspections.lacks_sites()
            and self._instruments.sites.can_begin(),
        )

    def _record_sites(self) -> SitesRecorded:
        """Record the allocation sites of the step that begins now.

        A step of very many operators takes seconds so. What it has allocated ages all the same.
        """
        instruments = self._instruments
        if not instruments.clock.affords_sites():
            return SitesRecorded(is_step_due=True)
        if not instruments.sites.can_begin():
            return SitesRecorded(is_step_due=False)

        # The other threads are searched only once this one was found not to allocate them.
        is_elsewhere = self._state.is_elsewhere and threading.active_count() > 1
        instruments.sites.begin(
            instruments.is_recent if self._inspections.wants_shorter else None,
            instruments.existed if is_elsewhere else None,
        )
        return SitesRecorded(is_step_due=True)

    def _scan_host(self) -> HostScanned:
        """Scan Python's objects if the host's memory grows, once operators do not explain it."""
        instruments = self._instruments
        if instruments.wants_heap_measured() and not self._is_tracing():
            return HostScanned(wants_lines=False, is_native=instruments.host_grows())
        if not instruments.affords_host_scan() or not instruments.scan_host(self._state.step):
            return HostScanned(wants_lines=False, is_native=False)
        if instruments.wants_heap_measured() and not self._is_tracing():
            return HostScanned(wants_lines=False, is_native=True)
        wants_lines = instruments.can_trace_lines() and not self._is_tracing()
        is_native = not wants_lines and instruments.is_native()
        return HostScanned(wants_lines, is_native)

    def _classify(self) -> Classified:
        """Return the leaks so far; none after an error of ours."""
        results: list[Classified] = []
        self._do(lambda: results.append(self._inspections.classify()), even_after_failure=True)
        return results[0] if results else Classified()

    def _build_result(self, classified: Classified) -> LiveMemory:
        """Build what is written to a file."""
        instruments = self._instruments

        unexplained = None if classified.leaks else instruments.host_trend(is_final=True)
        if instruments.host.find_leak(unexplained) is not None:
            unexplained = None  # what fills a container up to its limit is no leak

        cost = instruments.clock.cost()
        torch = sys.modules.get("torch")

        return LiveMemory(
            name=self.name,
            step_definition=self.step_definition,
            n_steps=self.n_steps,
            monitored_ns=instruments.clock.monitored_ns(),
            began_unix_us=instruments.clock.began_unix_us,
            samples=tuple(sample.to_model() for sample in instruments.series.samples),
            leaks=classified.leaks,
            n_evaluated_steps=classified.n_steps,
            not_measured=(*self._not_measured, *_describe_limits(instruments, classified.leaks)),
            cost=replace(cost, memory_bytes=instruments.live_tensors.most_bytes),
            torch=None if torch is None else str(torch.__version__),
            devices=tuple(environment.device_names()),
            argv=tuple(sys.argv),
            unexplained_per_step_bytes=None if unexplained is None else round(unexplained.per_step),
            host_peak=instruments.sampler.host_peaks.find(self._peak_bytes),
        )


def _describe_limits(instruments: Instruments, leaks: Sequence[Leak]) -> list[str]:
    """Return a sentence for each limit that was reached, and for what torch does not show."""
    sentences = []
    samples = instruments.series.samples
    exceeded = next((sample.step for sample in samples if Lack.NODES in sample.lacks), None)
    if exceeded is not None:
        sentences.append(
            f"From step {exceeded} on there were at times more than {MAX_NODES:,} graph nodes, "
            "up to which they are counted."
        )

    if instruments.live_tensors.has_more:
        sentences.append(
            f"There were at times more than {MAX_STORAGES:,} tensors, up to which they are counted."
        )

    if instruments.first_step and not instruments.live_tensors.has_earlier:
        sentences.append(
            "Tensors from before the first step are not counted: among so many objects the "
            "search for them would have taken too large a share of so short a run."
        )

    if any(leak.nodes_per_step for leak in leaks) and not shows_saved_tensors():
        sentences.append(
            "This version of torch does not show what autograd graphs save: tensors that a graph "
            "retains may be reported as tensors in a container (MEM004 instead of MEM003)."
        )

    uncertain = instruments.sampler.workers.uncertain_per_step
    if uncertain >= MIN_UNCERTAIN_BYTES:
        sentences.append(
            f"The loader's workers grow by {format_bytes(uncertain)} per step. They were started "
            "while a step was recorded, and record their own operators since, which may be a part "
            "of it."
        )

    return sentences
