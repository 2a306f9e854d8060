"""Watches a program's memory from step to step, within a budget, and says at the end what grew.

Most boundaries are passed with one comparison. At some of them the young objects are looked
through; only where growth is seen are lines sampled for a few steps, and holders looked for.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from profkit.capture import console, environment, signals
from profkit.capture.memory.monitor import leak_classifier
from profkit.capture.memory.monitor.allocation_sites import AllocationSampler
from profkit.capture.memory.monitor.budget import Budget, Clock, Work
from profkit.capture.memory.monitor.host_growth import LEAST_PER_STEP, HostObjects
from profkit.capture.memory.monitor.leak_inspector import Group, Inspection, LeakInspector
from profkit.capture.memory.monitor.live_tensors import LiveTensors, TensorKind
from profkit.capture.memory.monitor.sampler import Sampler
from profkit.capture.memory.monitor.series import (
    Series,
    Sort,
    grown,
    growth_of,
    made_anew,
    suspects,
)
from profkit.capture.memory.monitor.tracemalloc_lines import TracemallocLines
from profkit.index.trend import MIN_POINTS, MIN_STEPS, is_rising
from profkit.model.live_memory import Leak, LiveMemory

_LOOKS_APART: Final = 33
"""Looks lie apart by this part of the steps so far: each step first, a few hundred looks in all."""
_DEAR_LOOKS_APART: Final = 12
"""And where they are dear, so that they lie evenly to the end of a short run."""
_OVERDUE: Final = 1.5
"""So many times the step of the last look, and the next one is due whatever it costs."""
_LEAST_SAMPLED_STEPS: Final = 3
"""Steps whose lines are sampled at least: what the first of them made has stayed at their end."""
_SAMPLED_STEPS: Final = (6, 12, 24)
"""And at most, as long as the lines wanted are not known; the first time and again after that."""
_ENOUGH_TAKES: Final = 3
"""Takes of the host's objects, which cost more than anything else."""
_CHECKED_APART: Final = 8
"""Looks at which all looks are judged, not the last few: what grows now and then, or is made anew,
larger each time."""
_PATIENCE: Final = 64
"""Steps for which a recording is waited for to end, so that lines are known at a closer look."""
_CLOSER_APART: Final = 5
"""Steps between closer looks, at least; then half as many again as there have been."""


def _always() -> bool:
    return True


class LeakMonitor:
    """Watches one stretch of a program.

    Args:
        name: Its name.
        step_definition: What a step is, in a word.
        budget: What watching may cost.
        may_sample: Asked before lines are sampled, which would disturb a recording.
        is_alone: Asked whether no recording is going on, which takes memory of its own.
        lines_of_python: Whether Python notes the lines that make its objects, which is dear.

    Attributes:
        n_steps: Steps that have ended.
    """

    def __init__(
        self,
        name: str,
        step_definition: str,
        budget: Budget | None = None,
        may_sample: Callable[[], bool] = _always,
        is_alone: Callable[[], bool] = _always,
        *,
        lines_of_python: bool = False,
    ) -> None:
        self.name = name
        self.step_definition = step_definition
        self.n_steps = 0
        self._pid = os.getpid()
        self._next = 1
        self._clock = Clock(budget)
        self._census = LiveTensors(self._clock)
        self._births = AllocationSampler()
        self._may_sample = may_sample
        self._is_alone = is_alone
        self._lines = TracemallocLines(is_wanted=lines_of_python)
        self._readings = Sampler(self._clock, self._census, self._lines)
        self._host = HostObjects(self._lines)
        self._host_from = 0
        self._series = Series()
        self._sights: dict[Group, Inspection] = {}
        self._deepest: tuple[TensorKind, Inspection] | None = None
        self._made_anew: set[Sort] = set()
        self._grown: set[TensorKind] = set()
        self._sampled_for: set[TensorKind] = set()
        self._sample_from = 0
        self._sample_until = 0
        self._n_samplings = 0
        self._closer_from = 0
        self._first = 0
        self._failed = False
        self._not_seen: list[str] = []

    @property
    def is_home(self) -> bool:
        """Whether this is the process that began, and no forked child."""
        return self._pid == os.getpid()

    def step(self) -> None:
        """A step has ended."""
        self.n_steps += 1
        if self.n_steps >= self._next:
            self._guarded(self._at_boundary)

    def skip(self) -> None:
        """A step has ended that is recorded, and must not be disturbed."""
        self.n_steps += 1
        self._readings.workers.recorded()
        if self._births.is_on:
            self._births.end()

    def judged(self) -> tuple[Leak, ...]:
        """What has grown so far; nothing while there are too few steps to tell."""
        return self._judge()[0]

    def finish(self) -> LiveMemory:
        """Say what was seen, and let go of everything."""
        if self._births.is_on:
            self._births.end()
        self._guarded(self._last_look)
        live = self._told()
        self._guarded(self._let_go)
        return live

    def drop(self) -> None:
        """Let go of everything, and say nothing."""
        if self._births.is_on:
            self._births.end()
        self._guarded(self._let_go)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do something in the user's process; what goes wrong ends the watching alone."""
        if self._failed or not self.is_home:
            return
        try:
            with signals.deferred():
                work()
        except Exception as error:  # noqa: BLE001  (a bug of ours must not end the user's program)
            self._failed = True
            self._not_seen.append(f"Watching ended at step {self.n_steps}: {error}")
            console.warn("profkit stopped watching memory.", error)

    def _at_boundary(self) -> None:
        if not self._first:
            self._first = self.n_steps
            self._lines.begin()
            self._census.begin()
            self._look("first")
        else:
            sampled = self._births.is_on
            self._clock.step_ended(self.n_steps, sampled=sampled)
            if sampled:
                self._births.end(self.n_steps)
            elif not self._clock.affords("look") and not self._is_overdue():
                self._next = self.n_steps + 1
                return
            full = self._census.n_missed > 0 and self._clock.affords("full")
            self._look("full" if full else "look")
            if sampled:
                self._births.forget(lambda address: self._census.entry(address) is not None)
            if self.n_steps < self._sample_until and self._lacks_lines():
                self._sample()
            else:
                self._think()
        self._clock.step_begins(self.n_steps)

    def _is_overdue(self) -> bool:
        """Whether a look is due whatever it costs.

        What fills and then stops is a leak to whoever looks away too early. So looks always reach
        over most of the run: a dozen for a hundred steps, six more for a thousand.
        """
        return self.n_steps >= _OVERDUE * self._series.seen[-1].step

    def _look(self, work: Work) -> None:
        n_samples = len(self._series.seen)
        alone = self._is_alone()
        self._series.add(self._readings.take(self.n_steps, n_samples, work, is_alone=alone))
        apart = _LOOKS_APART if self._clock.is_within_share("look") else _DEAR_LOOKS_APART
        self._next = self.n_steps + max(1, self.n_steps // apart)

    def _think(self) -> None:
        """Decide whether what was seen is worth a closer look, and lines before it."""
        if len(self._series.seen) % _CHECKED_APART == 0 and self._clock.affords("judge"):
            with self._clock.spending("judge"):
                self._made_anew = set(made_anew(self._series))
                self._grown = grown(self._series)
        suspected = suspects(self._series) | self._grown
        grows = bool(suspected or self._made_anew or self._graph_rises())
        if self._sample_until:
            self._sample_until = 0
            self._look_closer(suspected | self._sampled_for)
        elif grows and self._may_look_closer():
            if not self._wants_lines(suspected) or not self._births.can_begin():
                self._look_closer(suspected)
            elif self._may_sample():
                self._sampled_for = suspected
                self._sample_from = self.n_steps
                self._sample_until = self.n_steps + _SAMPLED_STEPS[self._n_samplings]
                self._n_samplings += 1
                self._sample()
            elif self.n_steps > self._closer_from + _PATIENCE:
                self._look_closer(suspected)
        elif self.n_steps >= self._host_from and self._clock.affords("host"):
            self._look_at_host()

    def _may_look_closer(self) -> bool:
        return self.n_steps >= self._closer_from and self._clock.affords("closer")

    def _look_at_host(self) -> None:
        """Go through Python's objects if host memory has begun to grow beyond what is explained."""
        self._host_from = self.n_steps + max(_CLOSER_APART, self.n_steps // 4)
        if (
            self._host.n_takes >= _ENOUGH_TAKES
            or growth_of(self._series.host(), LEAST_PER_STEP) is None
        ):
            return
        with self._clock.spending("host"), self._readings.ours():
            own = [one.amounts for one in self._series.seen]
            self._host.take(self.n_steps, {id(one): one for one in own}.values())

    def _graph_rises(self) -> bool:
        return is_rising(self._series.nodes()[1])

    def _wants_lines(self, suspected: set[TensorKind]) -> bool:
        """Whether lines are still wanted, and there may be more samples."""
        known = {kind for kind, place in self._sights if place is not None}
        known_sorts = {(kind.device, kind.dtype) for kind in known}
        graph_known = self._deepest is not None and bool(self._deepest[1].stack)
        wanted = (
            bool(suspected - known)
            or bool(self._made_anew - known_sorts)
            or (self._has_deep_graph() and not graph_known)
        )
        return wanted and self._n_samplings < len(_SAMPLED_STEPS)

    def _lacks_lines(self) -> bool:
        """Whether some of what lines are sampled for has not been made and kept meanwhile."""
        if self.n_steps < self._sample_from + _LEAST_SAMPLED_STEPS:
            return True
        lined = {
            entry.kind
            for address, entry in self._census.entries()
            if entry.is_aged and entry.born in self._births.steps and self._births.stack_of(address)
        }
        return not self._sampled_for <= lined

    def _sample(self) -> None:
        """Sample the step that begins now."""
        if self._births.can_begin():
            self._births.begin()
            self._next = self.n_steps + 1

    def _look_closer(self, suspected: set[TensorKind]) -> None:
        with self._clock.spending("closer"), self._readings.ours(), self._lines.paused():
            closer = LeakInspector(self._census, self._births, self.n_steps, self._first)
            if suspected or self._made_anew:
                told = self._told_of_themselves()
                self._sights.update(closer.groups(suspected, self._made_anew, told))
            if self._has_deep_graph():
                newest = closer.deepest(self._told_of_themselves())
                self._deepest = _with_stack(newest, self._deepest)
        # What is held and what waits in a cycle is told; of what is in neither more may be seen.
        told_whole = all(sight.chains or sight.cycle for sight in self._sights.values())
        complete = bool(self._sights or self._deepest) and told_whole
        wants_more = not complete or self._wants_lines(suspected)
        apart = self.n_steps // 2 if wants_more else 2 * self.n_steps
        self._closer_from = self.n_steps + max(_CLOSER_APART, apart)

    def _told_of_themselves(self) -> set[Group]:
        """What was seen that no graph holds."""
        return {group for group, sight in self._sights.items() if not sight.is_in_graph}

    def _has_deep_graph(self) -> bool:
        return self._graph_rises() or any(sight.is_in_graph for sight in self._sights.values())

    def _last_look(self) -> None:
        """Look closer at what had no closer look yet, while the program's modules are there."""
        seen = {kind for kind, _ in self._sights}
        suspected = (suspects(self._series) | grown(self._series)) - seen
        self._made_anew = set(made_anew(self._series)) - {
            (kind.device, kind.dtype) for kind in seen
        }
        unknown = self._graph_rises() and self._deepest is None
        if suspected or self._made_anew or unknown:
            self._look_closer(suspected)

    def _judge(self) -> tuple[tuple[Leak, ...], int]:
        """What has grown, and over how many steps that could be judged."""
        steps = [one.step for one in self._series.seen]
        if len(steps) < MIN_POINTS or steps[-1] - steps[0] < MIN_STEPS:
            return (), 0
        evidence = leak_classifier.Evidence(
            self._series,
            self._census,
            self._births,
            self._sights,
            self._deepest,
            self._host.growth(growth_of(self._series.host(), LEAST_PER_STEP)),
            self._readings.workers.growth(),
        )
        return leak_classifier.classify(evidence), steps[-1] - steps[0]

    def _unexplained(self) -> int | None:
        """By how much a step the heap grows beyond tensors and graphs, or None."""
        trend = growth_of(self._series.host(), LEAST_PER_STEP)
        return None if trend is None else round(trend.per_step)

    def _told(self) -> LiveMemory:
        growths, n_evaluated_steps = self._judge()
        torch = sys.modules.get("torch")
        return LiveMemory(
            name=self.name,
            step_definition=self.step_definition,
            n_steps=self.n_steps,
            monitored_ns=self._clock.monitored_ns(),
            began_unix_us=self._clock.began_unix_us,
            samples=tuple(one.figures() for one in self._series.seen),
            leaks=growths,
            n_evaluated_steps=n_evaluated_steps,
            not_measured=tuple(self._not_seen),
            cost=self._clock.cost(),
            torch=None if torch is None else str(torch.__version__),
            devices=() if torch is None else tuple(environment.devices(torch)),
            argv=tuple(sys.argv),
            unexplained_per_step_bytes=self._unexplained() if not growths else None,
        )

    def _let_go(self) -> None:
        self._births.forget(lambda _: False)
        self._census.end()
        self._lines.end()
        self._readings.close()


def _with_stack(
    newest: tuple[TensorKind, Inspection] | None, before: tuple[TensorKind, Inspection] | None
) -> tuple[TensorKind, Inspection] | None:
    """What is seen now of a graph, with the line that was known before."""
    if newest is None or before is None or newest[1].stack:
        return newest or before
    return newest[0], replace(newest[1], stack=before[1].stack)
