"""Decides what the memory monitor does next: a pure transition function.

Between two steps of the program the monitor is in one of the phases of :class:`MonitorPhase`. At
the end of a step it takes one action after the other, each of which is decided by the outcome of
the one before, until it lets the program go on. Whoever carries the actions out measures; what
follows from the measurements is decided here alone.
"""

import sys
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from profkit.capture.memory.monitor.live_tensors import MIN_AGE_STEPS
from profkit.dataclass import dataclass, replace

INTERVAL_DIVISOR: Final = 33
"""Steps between two samples: this part of the steps so far. So each step is sampled at first, and a
few hundred samples are taken in all."""
COSTLY_INTERVAL_DIVISOR: Final = 12
"""This part instead once samples exceed their share of the time: they cover a short run evenly."""
MIN_SAMPLED_STEPS: Final = 3
"""Steps whose allocation sites are sampled at least: allocations of the first have aged then."""
MAX_SAMPLED_STEPS: Final = (6, 12, 24)
"""Steps whose sites are sampled at most while wanted ones are unknown: the first time and later."""
GROWTHS_SAMPLED: Final = 2
"""If growth comes more rarely, sites are sampled over so many of its intervals."""
PATIENCE_STEPS: Final = 64
"""Steps to wait for a trace to end, so that allocation sites are known at an inspection."""
MIN_INSPECTION_INTERVAL: Final = 5
"""Least number of steps between inspections; later the interval grows with the steps so far."""


class MonitorPhase(Enum):
    """What the monitor does between two steps of the program."""

    UNSTARTED = auto()
    """No step has ended."""
    WATCHING = auto()
    """Memory is sampled every few steps, as far as the budget allows."""
    SAMPLING_SITES = auto()
    """Memory grows: the allocation sites of a few steps are sampled, each of which is a sample."""
    TRACING_LINES = auto()
    """The host's memory grows: Python's allocations of a few steps are traced."""
    MEASURING_HEAP = auto()
    """No Python object explains it: the heap is measured at each line of a few steps."""
    FINISHED = auto()
    """There is a result, or none is wanted."""
    GIVEN_UP = auto()
    """An error of profkit has ended the monitoring; what was measured before is the result."""


class MonitorAction(Enum):
    """What the monitor does at the end of a step."""

    BEGIN = auto()
    """Begin to track tensors, and take the first sample."""
    SAMPLE = auto()
    """Take a sample."""
    SAMPLE_RECORDED = auto()
    """Take a sample after a step that was recorded: drop the allocations that were freed."""
    STOP_RECORDING = auto()
    """Stop sampling sites, tracing and measuring, all of which would disturb a trace."""
    ADVANCE_TRACING = auto()
    """Note a step in which Python's allocations were traced."""
    ADVANCE_MEASURING = auto()
    """Note a step in which the heap was measured."""
    CHECK_SITES = auto()
    """Find out whether the sites of all that grows are known."""
    RECORD_SITES = auto()
    """Record the allocation sites of the next step."""
    EVALUATE = auto()
    """Find out whether memory grows."""
    ASK_FOR_SITES = auto()
    """Ask whether sites may be sampled, which ends the recording of a run without steps."""
    INSPECT = auto()
    """Search the holders of what grows."""
    SCAN_HOST = auto()
    """Scan Python's objects if the host's memory grows."""
    TRACE_LINES = auto()
    """Begin to trace Python's allocations."""
    MEASURE_HEAP = auto()
    """Begin to measure the heap, unless a recording forbids it."""
    GO_ON = auto()
    """Let the program go on."""
    WAIT = auto()
    """Let the program go on without any measurement at this step, which the clock goes on with."""
    END = auto()
    """Release all that was tracked."""


RESTS: Final = frozenset({MonitorAction.GO_ON, MonitorAction.WAIT, MonitorAction.END})
"""The actions that have no outcome: the program goes on."""


@dataclass(frozen=True)
class MonitorState:
    """The state of a monitor.

    Attributes:
        step: The last step at whose end something was done.
        next_step: The next one.
        sites_from: The step from whose end on allocation sites were sampled last.
        sites_until: The step after which they are sampled no more.
        n_site_samplings: How often they were sampled, for a few steps each.
        inspect_from: The first step at whose end an inspection may be made.
        host_from: The first step at whose end the host's objects may be scanned.
    """

    phase: MonitorPhase = MonitorPhase.UNSTARTED
    step: int = 0
    next_step: int = 1
    sites_from: int = 0
    sites_until: int = 0
    n_site_samplings: int = 0
    inspect_from: int = 0
    host_from: int = 0

    @property
    def is_over(self) -> bool:
        """Tell whether nothing is done at further steps."""
        return self.phase in {MonitorPhase.FINISHED, MonitorPhase.GIVEN_UP}

    @property
    def is_elsewhere(self) -> bool:
        """Tell whether enough steps were sampled to suspect the allocations of other threads."""
        return self.step >= self.sites_from + MIN_SAMPLED_STEPS

    @property
    def may_sample_again(self) -> bool:
        """Tell whether allocation sites may be sampled another time."""
        return self.n_site_samplings < len(MAX_SAMPLED_STEPS)


class StepEnded(NamedTuple):
    """A step has ended, at whose end something is due.

    Attributes:
        was_recorded: Whether its sites were sampled, its allocations traced or its heap measured.
        n_to_wait: After how many steps a sample may be affordable, or is overdue; 0 if one is due.
    """

    step: int
    was_recorded: bool
    n_to_wait: int = 0


class TraceBegan(NamedTuple):
    """A trace is recorded in the step that has ended, or in the next one."""

    step: int


class Sampled(NamedTuple):
    """A sample was taken.

    Attributes:
        is_cheap: Whether samples have stayed within their share of the time.
        affords_sites: Whether sampling sites has.
        is_tracing: Whether a trace is being recorded.
    """

    is_cheap: bool
    affords_sites: bool = False
    is_tracing: bool = False


class RecordingStopped(NamedTuple):
    """Nothing is recorded any more."""


class TracingAdvanced(NamedTuple):
    """A step in which allocations were traced was noted."""

    goes_on: bool


class MeasuringAdvanced(NamedTuple):
    """A step in which the heap was measured was noted."""

    goes_on: bool


class SitesChecked(NamedTuple):
    """The known sites were compared with the wanted ones."""

    are_missing: bool


class SitesRecorded(NamedTuple):
    """The recording of a step's sites has begun, or is postponed to a later step.

    Attributes:
        is_step_due: Whether something is due at the end of the next step.
    """

    is_step_due: bool


class Evaluated(NamedTuple):
    """The samples were evaluated.

    Attributes:
        grows: Whether memory grows.
        affords_host: Whether growth of the host's memory can be examined.
        can_sample_sites: Whether sites are missing and can be recorded.
    """

    grows: bool
    affords_inspection: bool
    affords_host: bool
    can_sample_sites: bool


class SitesAnswered(NamedTuple):
    """It was answered whether sites may be sampled.

    Attributes:
        interval: Most steps between two increases of what grows.
    """

    may_sample: bool
    interval: int


class Inspected(NamedTuple):
    """An inspection was made.

    Attributes:
        is_complete: Whether there is a holder for all that grows.
        lacks_sites: Whether sites are missing.
    """

    is_complete: bool
    lacks_sites: bool


class HostScanned(NamedTuple):
    """Python's objects were scanned, or need not be, or not yet.

    Attributes:
        wants_lines: Whether the lines of their allocations are unknown and can be traced.
        is_native: Whether they do not explain the growth, or a library may, which is seen sooner.
    """

    wants_lines: bool
    is_native: bool


class LinesBegun(NamedTuple):
    """Tracing was begun, unless the program traces itself."""

    is_on: bool


class HeapBegun(NamedTuple):
    """Measuring was begun, if it was allowed and possible."""

    is_allowed: bool
    is_on: bool


class MonitorFailed(NamedTuple):
    """An error of profkit."""


class MonitorFinished(NamedTuple):
    """The result is made, or none is wanted."""


MonitorEvent = (
    StepEnded
    | TraceBegan
    | Sampled
    | RecordingStopped
    | TracingAdvanced
    | MeasuringAdvanced
    | SitesChecked
    | SitesRecorded
    | Evaluated
    | SitesAnswered
    | Inspected
    | HostScanned
    | LinesBegun
    | HeapBegun
    | MonitorFailed
    | MonitorFinished
)

Transition = tuple[MonitorState, MonitorAction]

_Phase = MonitorPhase
_Action = MonitorAction


def next_action(state: MonitorState, event: MonitorEvent) -> Transition:
    """Return the state after an event, and what to do now.

    Raises:
        ValueError: The event cannot happen in this phase.
    """
    if isinstance(event, MonitorFailed):
        return _over(state, _Phase.GIVEN_UP), _Action.GO_ON
    if isinstance(event, MonitorFinished):
        return _over(state, _Phase.FINISHED), _Action.END
    if state.is_over:
        return state, _Action.GO_ON
    transition = _TRANSITIONS.get((state.phase, type(event)))
    if transition is None:
        raise ValueError(f"{type(event).__name__} cannot happen while {state.phase.name}.")
    return transition(state, event)


def _over(state: MonitorState, phase: MonitorPhase) -> MonitorState:
    """Return the last state: no step has anything due any more."""
    if state.is_over:
        return state
    return replace(state, phase=phase, next_step=sys.maxsize)


def _first_step_ended(state: MonitorState, event: StepEnded) -> Transition:
    return replace(state, step=event.step), _Action.BEGIN


def _step_ended(state: MonitorState, event: StepEnded) -> Transition:
    """Take a sample if one is due."""
    state = replace(state, step=event.step)
    if event.was_recorded:
        return state, _Action.SAMPLE_RECORDED
    if not event.n_to_wait:
        return state, _Action.SAMPLE
    return replace(state, next_step=state.step + event.n_to_wait), _Action.WAIT


def _traced_step_ended(state: MonitorState, event: StepEnded) -> Transition:
    return replace(state, step=event.step), _Action.ADVANCE_TRACING


def _measured_step_ended(state: MonitorState, event: StepEnded) -> Transition:
    """Note the measurements, unless a profiler of the program has ended them."""
    if not event.was_recorded:
        return _step_ended(replace(state, phase=_Phase.WATCHING), event)
    return replace(state, step=event.step), _Action.ADVANCE_MEASURING


def _stop_recording(state: MonitorState, event: TraceBegan) -> Transition:
    return replace(state, step=event.step), _Action.STOP_RECORDING


def _recording_stopped(state: MonitorState, _event: RecordingStopped) -> Transition:
    """Let the program go on; sites are sampled later, and what else was recorded is complete."""
    if state.phase in {_Phase.TRACING_LINES, _Phase.MEASURING_HEAP}:
        state = replace(state, phase=_Phase.WATCHING)
    return state, _Action.GO_ON


def _recording_advanced(
    state: MonitorState, event: TracingAdvanced | MeasuringAdvanced
) -> Transition:
    if event.goes_on:
        # The next step may be followed by a recorded one.
        return _at_next_step(state), _Action.GO_ON
    return replace(_at_next_step(state), phase=_Phase.WATCHING), _Action.SAMPLE_RECORDED


def _first_sampled(state: MonitorState, event: Sampled) -> Transition:
    return replace(_after_interval(state, event), phase=_Phase.WATCHING), _Action.GO_ON


def _sampled(state: MonitorState, event: Sampled) -> Transition:
    return _after_interval(state, event), _Action.EVALUATE


def _sampled_with_sites(state: MonitorState, event: Sampled) -> Transition:
    """Sample the sites of another step, if wanted ones may be missing."""
    state = _after_interval(state, event)
    n_steps = state.step - state.sites_from
    is_short = n_steps < MAX_SAMPLED_STEPS[-1] or event.affords_sites
    if state.step >= state.sites_until or not is_short or event.is_tracing:
        return state, _Action.EVALUATE
    if n_steps < MIN_SAMPLED_STEPS:
        return state, _Action.RECORD_SITES
    return state, _Action.CHECK_SITES


def _sites_checked(state: MonitorState, event: SitesChecked) -> Transition:
    return state, _Action.RECORD_SITES if event.are_missing else _Action.EVALUATE


def _sites_recorded(state: MonitorState, event: SitesRecorded) -> Transition:
    return _at_next_step(state) if event.is_step_due else state, _Action.GO_ON


def _evaluated(state: MonitorState, event: Evaluated) -> Transition:
    """Inspect growth, after its sites were sampled where that is possible."""
    if event.grows and event.affords_inspection and state.step >= state.inspect_from:
        if event.can_sample_sites and state.may_sample_again:
            return state, _Action.ASK_FOR_SITES
        return state, _Action.INSPECT
    if state.step >= state.host_from and event.affords_host:
        interval = max(MIN_INSPECTION_INTERVAL, state.step // 4)
        return replace(state, host_from=state.step + interval), _Action.SCAN_HOST
    return state, _Action.GO_ON


def _evaluated_with_sites(state: MonitorState, _event: Evaluated) -> Transition:
    """Inspect what grows, now that its sites were sampled."""
    return replace(state, phase=_Phase.WATCHING, sites_until=0), _Action.INSPECT


def _start_site_sampling(state: MonitorState, event: SitesAnswered) -> Transition:
    """Begin to sample sites; if a trace forbids it for long, inspect without them."""
    if event.may_sample and state.may_sample_again:
        most = MAX_SAMPLED_STEPS[state.n_site_samplings]
        # Growth that comes in some steps only must fall into those that are sampled.
        if event.interval:
            most = max(most, GROWTHS_SAMPLED * event.interval + MIN_AGE_STEPS)
        state = replace(
            state,
            phase=_Phase.SAMPLING_SITES,
            sites_from=state.step,
            sites_until=state.step + most,
            n_site_samplings=state.n_site_samplings + 1,
        )
        return state, _Action.RECORD_SITES

    if state.step > state.inspect_from + PATIENCE_STEPS:
        return state, _Action.INSPECT
    return state, _Action.GO_ON


def _inspected(state: MonitorState, event: Inspected) -> Transition:
    """Wait for the next inspection, the longer the less there is to find."""
    wants_more = not event.is_complete or (event.lacks_sites and state.may_sample_again)
    interval = state.step // 2 if wants_more else 2 * state.step
    inspect_from = state.step + max(MIN_INSPECTION_INTERVAL, interval)
    return replace(state, inspect_from=inspect_from), _Action.GO_ON


def _host_scanned(state: MonitorState, event: HostScanned) -> Transition:
    if event.wants_lines:
        return state, _Action.TRACE_LINES
    return state, _Action.MEASURE_HEAP if event.is_native else _Action.GO_ON


def _lines_begun(state: MonitorState, event: LinesBegun) -> Transition:
    phase = _Phase.TRACING_LINES if event.is_on else state.phase
    return replace(_at_next_step(state), phase=phase), _Action.GO_ON


def _heap_begun(state: MonitorState, event: HeapBegun) -> Transition:
    phase = _Phase.MEASURING_HEAP if event.is_on else state.phase
    state = _at_next_step(state) if event.is_allowed else state
    return replace(state, phase=phase), _Action.GO_ON


def _at_next_step(state: MonitorState) -> MonitorState:
    """Return the state with something due at the end of the next step."""
    return replace(state, next_step=state.step + 1)


def _after_interval(state: MonitorState, event: Sampled) -> MonitorState:
    """Return the state with the next sample due after a part of the steps so far."""
    divisor = INTERVAL_DIVISOR if event.is_cheap else COSTLY_INTERVAL_DIVISOR
    return replace(state, next_step=state.step + max(1, state.step // divisor))


_ACTIVE: Final = (
    _Phase.WATCHING, _Phase.SAMPLING_SITES, _Phase.TRACING_LINES, _Phase.MEASURING_HEAP,
)  # fmt: skip

_TRANSITIONS: Final[
    dict[tuple[MonitorPhase, type[MonitorEvent]], Callable[[MonitorState, Any], Transition]]
] = {
    (_Phase.UNSTARTED, StepEnded): _first_step_ended,
    (_Phase.UNSTARTED, Sampled): _first_sampled,
    (_Phase.UNSTARTED, TraceBegan): _stop_recording,
    (_Phase.UNSTARTED, RecordingStopped): _recording_stopped,
    **{(phase, TraceBegan): _stop_recording for phase in _ACTIVE},
    **{(phase, RecordingStopped): _recording_stopped for phase in _ACTIVE},
    (_Phase.WATCHING, StepEnded): _step_ended,
    (_Phase.WATCHING, Sampled): _sampled,
    (_Phase.WATCHING, Evaluated): _evaluated,
    (_Phase.WATCHING, SitesAnswered): _start_site_sampling,
    (_Phase.WATCHING, Inspected): _inspected,
    (_Phase.WATCHING, HostScanned): _host_scanned,
    (_Phase.WATCHING, LinesBegun): _lines_begun,
    (_Phase.WATCHING, HeapBegun): _heap_begun,
    (_Phase.SAMPLING_SITES, StepEnded): _step_ended,
    (_Phase.SAMPLING_SITES, Sampled): _sampled_with_sites,
    (_Phase.SAMPLING_SITES, SitesChecked): _sites_checked,
    (_Phase.SAMPLING_SITES, SitesRecorded): _sites_recorded,
    (_Phase.SAMPLING_SITES, Evaluated): _evaluated_with_sites,
    (_Phase.TRACING_LINES, StepEnded): _traced_step_ended,
    (_Phase.TRACING_LINES, TracingAdvanced): _recording_advanced,
    (_Phase.MEASURING_HEAP, StepEnded): _measured_step_ended,
    (_Phase.MEASURING_HEAP, MeasuringAdvanced): _recording_advanced,
}
"""What may happen in each phase, and what follows."""
