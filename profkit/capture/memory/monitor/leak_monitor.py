"""Monitors a program's memory from step to step, within a budget, and reports leaks at the end.

Most step boundaries cost one comparison. At some a sample is taken, which scans young objects. Only
if growth is seen are allocation sites sampled for a few steps, and holders searched.
"""

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from profkit.capture.memory.monitor import leak_classifier
from profkit.capture.memory.monitor.allocation_sites import AllocationSampler
from profkit.capture.memory.monitor.budget import OVERDUE, Budget, Clock, Work
from profkit.capture.memory.monitor.host_growth import MIN_BYTES_PER_STEP, HostGrowthTracker
from profkit.capture.memory.monitor.leak_inspector import Inspection, LeakInspector, SiteGroup
from profkit.capture.memory.monitor.live_tensors import (
    MAX_STORAGES,
    MIN_AGE_STEPS,
    LiveTensors,
    TensorKind,
)
from profkit.capture.memory.monitor.sampler import MAX_NODES, Sampler
from profkit.capture.memory.monitor.series import (
    DeviceDtype,
    Series,
    TracedSteps,
    growing_kinds,
    growth_interval,
    growth_of,
    reallocated,
    suspected_kinds,
)
from profkit.capture.memory.monitor.tracemalloc_lines import TracemallocLines
from profkit.capture.process import console, environment, signals
from profkit.capture.source.user_code import Place
from profkit.index.trend import MIN_POINTS, MIN_STEPS, Trend, is_rising
from profkit.model.growth import growth
from profkit.model.live_memory import Leak, LiveMemory

_INTERVAL_DIVISOR: Final = 33
"""Steps between two samples: this part of the steps so far. So each step is sampled at first, and a
few hundred samples are taken in all."""
_COSTLY_INTERVAL_DIVISOR: Final = 12
"""The same once samples exceed their share of the time, so that they cover a short run evenly."""
_SAMPLING: Final[tuple[Work, ...]] = ("young", "evaluate")
_PASS_NS: Final = 15_000_000
"""What a pass over all objects takes for those of torch,"""
_NS_PER_BLOCK: Final = 11
"""and more for each block of Python's allocator, some 2.6 per object."""
_MIN_SAMPLED_STEPS: Final = 3
"""Steps whose allocation sites are sampled at least: allocations of the first have aged then."""
_MAX_SAMPLED_STEPS: Final = (6, 12, 24)
"""Steps whose sites are sampled at most while wanted ones are unknown: the first time and later."""
_GROWTHS_SAMPLED: Final = 2
"""If growth comes more rarely, sites are sampled over so many of its intervals."""
_MAX_HOST_SCANS: Final = 4
"""Scans of host objects, which cost more than anything else."""
_CHECK_INTERVAL: Final = 8
"""Samples between evaluations of all samples instead of the latest few, which find occasional
growth and reallocations."""
_PATIENCE_STEPS: Final = 64
"""Steps to wait for a trace to end, so that allocation sites are known at an inspection."""
_MIN_INSPECTION_INTERVAL: Final = 5
"""Least number of steps between inspections; later the interval grows with the steps so far."""


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
        self._next_step = 1
        self._clock = Clock(budget)
        self._live_tensors = LiveTensors(self._clock)
        self._sites = AllocationSampler()
        self._may_sample_sites = may_sample_sites
        self._is_tracing = is_tracing
        self._lines = TracemallocLines(enabled=tracemalloc)
        self._host = HostGrowthTracker(self._lines)
        self._sampler = Sampler(self._clock, self._live_tensors, self._host.tracing_bytes)
        self._host_from = 0
        self._series = Series()
        self._inspections: dict[SiteGroup, Inspection] = {}
        self._deepest: tuple[TensorKind, Inspection] | None = None
        self._reallocated: set[DeviceDtype] = set()
        self._growing: set[TensorKind] = set()
        self._sampled_for: set[TensorKind] = set()
        self._bytes_at: dict[TensorKind, dict[Place, int]] = {}
        self._sites_from = 0
        self._sites_until = 0
        self._n_site_samplings = 0
        self._inspect_from = 0
        self._first_step = 0
        self._pass_ns = 0
        self._failed = False
        self._not_measured: list[str] = []

    @property
    def is_own_process(self) -> bool:
        """Whether this is the process that began monitoring, and not a forked child."""
        return self._pid == os.getpid()

    def step(self) -> None:
        """A step has ended."""
        self.n_steps += 1
        if self.n_steps >= self._next_step:
            self._guarded(self._at_boundary)

    def skip(self) -> None:
        """A step has ended that was traced and must not be disturbed."""
        self.n_steps += 1
        self._sampler.workers.note_tracing()
        self._end_sampling()

    def leaks(self) -> tuple[Leak, ...]:
        """The leaks so far; none while there are too few steps."""
        return self._classify()[0]

    def finish(self) -> LiveMemory:
        """End monitoring and return the result."""
        self._sites.end()
        self._host.end()
        self._guarded(self._inspect_at_end)
        live = self._result()
        self._guarded(self._release)
        return live

    def discard(self) -> None:
        """End monitoring without a result."""
        self._sites.end()
        self._host.end()
        self._guarded(self._release)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do some work in the user's process; an error only ends the monitoring."""
        if self._failed or not self.is_own_process:
            return
        try:
            with signals.deferred():
                work()
        except Exception as error:  # noqa: BLE001  (a bug of ours must not end the user's program)
            self._failed = True
            self._not_measured.append(f"Monitoring stopped at step {self.n_steps}: {error}")
            console.warn("profkit stopped monitoring memory.", error)

    def _at_boundary(self) -> None:
        if not self._first_step:
            self._first_step = self.n_steps
            self._lines.begin()
            self._live_tensors.begin()
            self._pass_ns = _PASS_NS + _NS_PER_BLOCK * sys.getallocatedblocks()
            self._find_earlier()
            self._sample("young")
        else:
            sites_sampled = self._sites.is_on or self._host.is_sampling
            if sites_sampled and self._is_tracing():
                self._end_sampling()
            self._clock.step_ended(self.n_steps, sites_sampled=sites_sampled)
            if self._is_growth_sampled() or self._is_native_growth_sampled():
                self._clock.step_begins(self.n_steps)
                return
            if self._sites.is_on:
                self._sites.end(self.n_steps)
            elif not (sites_sampled or self._affords_sample() or self._is_overdue()):
                self._next_step = self.n_steps + 1
                return
            self._find_earlier()
            is_needed = self._live_tensors.has_earlier and self._live_tensors.n_missed > 0
            full = is_needed and self._clock.affords("full")
            self._sample("full" if full else "young")
            if sites_sampled:
                self._sites.retain(self._existed)
            if self._may_sample_more() and self._lacks_sites():
                self._sample_sites()
            else:
                self._evaluate()
        self._clock.step_begins(self.n_steps)

    def _affords_sample(self) -> bool:
        return self._clock.affords("young") and self._clock.affords("evaluate")

    def _find_earlier(self) -> None:
        """Find what existed before the first step, once that is affordable.

        Among a million objects that takes as long as two steps of 20 ms. It has been alive all the
        time, and so is added to the samples so far.
        """
        if self._live_tensors.has_earlier or not self._clock.affords("first", self._pass_ns):
            return
        with self._clock.spending("first"), self._sampler.excluding_own():
            earlier = self._live_tensors.find_earlier(self._first_step, self.n_steps)
        self._series.add_earlier(earlier)

    def _end_sampling(self) -> None:
        """End what would disturb a recording: the step was recorded, or the next one will be."""
        self._sites.end()
        if self._host.growth.next_step:
            self._note_traced(self._host.growth.own_bytes())
        self._host.end()

    def _note_traced(self, tracing_bytes: int) -> None:
        """Note the steps since the last sample, in which allocations were traced."""
        first = self._series.samples[-1].step
        self._series.traced.append(TracedSteps(first, self.n_steps, tracing_bytes))

    def _is_overdue(self) -> bool:
        """Whether a sample is due regardless of its cost.

        So samples always cover most of the run: some fifteen in a hundred steps, nine more in a
        thousand.
        """
        return self.n_steps >= OVERDUE * self._series.samples[-1].step

    def _sample(self, work: Work) -> None:
        n_samples = len(self._series.samples)
        is_tracing = self._is_tracing()
        self._series.add(self._sampler.take(self.n_steps, n_samples, work, is_tracing=is_tracing))
        is_cheap = all(map(self._clock.is_within_share, _SAMPLING))
        divisor = _INTERVAL_DIVISOR if is_cheap else _COSTLY_INTERVAL_DIVISOR
        self._next_step = self.n_steps + max(1, self.n_steps // divisor)

    def _evaluate(self) -> None:
        """Decide whether to inspect, or to sample allocation sites before."""
        is_check_due = len(self._series.samples) % _CHECK_INTERVAL == 0
        if is_check_due and self._clock.affords("classify"):
            with self._clock.spending("classify"):
                self._growing = growing_kinds(self._series)
                self._reallocated = set(reallocated(self._series, self._growing))
        with self._clock.spending("evaluate"):
            suspected = suspected_kinds(self._series) | self._growing
            grows = bool(suspected or self._reallocated or self._graph_rises())
        may_inspect = self.n_steps >= self._inspect_from and self._clock.affords("inspection")
        if self._sites_until:
            self._sites_until = 0
            self._inspect(suspected | self._sampled_for)
        elif grows and may_inspect:
            if not self._wants_sites(suspected) or not self._sites.can_begin():
                self._inspect(suspected)
            elif self._may_sample_sites():
                self._sampled_for = suspected
                self._sites_from = self.n_steps
                intervals = [growth_interval(self._series, kind) for kind in suspected]
                most = _MAX_SAMPLED_STEPS[self._n_site_samplings]
                most = max([most, *(_GROWTHS_SAMPLED * one + MIN_AGE_STEPS for one in intervals)])
                self._sites_until = self.n_steps + most
                self._n_site_samplings += 1
                self._sample_sites()
            elif self.n_steps > self._inspect_from + _PATIENCE_STEPS:
                self._inspect(suspected)
        elif self.n_steps >= self._host_from and self._clock.affords("host"):
            self._scan_host()

    def _is_growth_sampled(self) -> bool:
        """Whether the allocations of further steps are traced for their lines."""
        growth = self._host.growth
        if growth.next_step:
            self._next_step = self.n_steps + 1  # which may be followed by a recorded one
        if 0 < growth.next_step <= self.n_steps:
            tracing_bytes = growth.own_bytes()
            with self._clock.spending("lines"), self._sampler.excluding_own():
                growth.advance(self.n_steps)
            if not growth.next_step:
                self._note_traced(tracing_bytes)
                self._sampler.exclude_jump(self.n_steps, self._series)
        return bool(growth.next_step)

    def _is_native_growth_sampled(self) -> bool:
        """Whether the heap is measured at each line and operator of further steps."""
        native = self._host.native
        if not native.is_on:
            return False
        with self._clock.spending("lines"), self._sampler.excluding_own():
            is_done = native.advance(self.n_steps)
        self._next_step = self.n_steps + 1
        if is_done:
            self._sampler.exclude_jump(self.n_steps, self._series)
        return not is_done

    def _scan_host(self) -> None:
        """Scan Python's objects if unexplained host memory growth has begun."""
        self._host_from = self.n_steps + max(_MIN_INSPECTION_INTERVAL, self.n_steps // 4)
        with self._clock.spending("evaluate"):
            grows = self._host_trend() is not None or self._host.has_traced_growth
        if self._host.n_scans >= _MAX_HOST_SCANS or not grows:
            return
        with self._clock.spending("host"), self._sampler.excluding_own():
            own = [one.amounts for one in self._series.samples]
            own = list({id(one): one for one in own}.values())
            self._host.scan(self.n_steps, own, self._sampler.n_own_blocks)
        wants_lines = not self._lines.is_enabled and self._host.growth.per_step is None
        if wants_lines and self._clock.affords("lines") and not self._is_tracing():
            self._host.growth.begin(self.n_steps)
            self._next_step = self.n_steps + 1
        elif self._is_native() and self._may_sample_sites():
            with self._clock.spending("lines"), self._sampler.excluding_own():
                self._host.native.begin(self.n_steps)
            self._next_step = self.n_steps + 1

    def _is_native(self) -> bool:
        """Whether growth seems to be native, and was not measured at each line and operator yet."""
        leak = self._host.leak(self._host_trend())
        return leak is not None and leak.kind == "native" and self._host.native.growth is None

    def _host_trend(self, *, is_final: bool = False) -> Trend | None:
        """Growth of the heap beyond tensors and graphs, or None.

        Args:
            is_final: Whether it is reported, so that tracing must not have led to it.
        """
        host = self._series.host(self._host.block_bytes)
        trend = growth_of(host, MIN_BYTES_PER_STEP)
        if is_final and trend and not self._series.is_seen_without_tracing(host, trend):
            return None
        return trend

    def _graph_rises(self) -> bool:
        return is_rising(self._series.latest_nodes())

    def _wants_sites(self, suspected: set[TensorKind]) -> bool:
        """Whether allocation sites are still missing and may be sampled again."""
        known = {kind for kind, site in self._inspections if site is not None}
        known_dtypes = {
            (kind.device, kind.dtype)
            for (kind, site), one in self._inspections.items()
            if site is not None and one.n_enlarged
        }
        graph_known = self._deepest is not None and bool(self._deepest[1].stack)
        wanted = (
            bool(suspected - known)
            or bool(self._reallocated - known_dtypes)
            or (self._has_deep_graph() and not graph_known)
        )
        return wanted and self._n_site_samplings < len(_MAX_SAMPLED_STEPS)

    def _may_sample_more(self) -> bool:
        """Whether the allocation sites of another step may be sampled."""
        n_steps = self.n_steps - self._sites_from
        is_short = n_steps < _MAX_SAMPLED_STEPS[-1] or self._clock.affords_sites()
        return self.n_steps < self._sites_until and is_short and not self._is_tracing()

    def _lacks_sites(self) -> bool:
        """Whether some kind that sites are sampled for has no aged storage with a known site."""
        if self.n_steps < self._sites_from + _MIN_SAMPLED_STEPS:
            return True
        sited = {
            storage.kind
            for address, storage in self._live_tensors.storages()
            if storage.is_aged
            and storage.first_step in self._sites.steps
            and self._sites.stack_of(address)
        }
        extended = {
            (storage.kind.device, storage.kind.dtype)
            for address, storage in self._live_tensors.storages()
            if self._sites.is_extension(address)
        }
        return not (self._sampled_for <= sited and self._reallocated <= extended)

    def _sample_sites(self) -> None:
        """Sample the allocation sites of the step that begins now.

        A step of very many operators takes seconds so. What it has allocated ages all the same.
        """
        if not self._clock.affords_sites():
            self._next_step = self.n_steps + 1
        elif self._sites.can_begin():
            # The other threads are searched only once this one was found not to allocate them.
            is_elsewhere = self.n_steps >= self._sites_from + _MIN_SAMPLED_STEPS
            self._sites.begin(
                self._is_recent if self._reallocated else None,
                self._existed if is_elsewhere and threading.active_count() > 1 else None,
            )
            self._next_step = self.n_steps + 1

    def _existed(self, address: int) -> bool:
        """Whether a storage was there at the last sample."""
        return self._live_tensors.storage(address) is not None

    def _is_recent(self, address: int) -> bool:
        """Whether a tracked storage was allocated since monitoring began."""
        storage = self._live_tensors.storage(address)
        return storage is not None and storage.first_step > self._first_step

    def _inspect(self, suspected: set[TensorKind]) -> None:
        with (
            self._clock.spending("inspection"),
            self._sampler.excluding_own(),
            self._lines.paused(),
        ):
            inspector = LeakInspector(
                self._live_tensors, self._sites, self.n_steps, self._first_step
            )
            if suspected or self._reallocated:
                found = inspector.groups(
                    suspected, self._reallocated, self._groups_outside_graphs()
                )
                for group, one in found.items():
                    self._inspections[group] = _with_known(one, self._inspections.get(group))
            if self._has_deep_graph():
                newest = inspector.deepest(self._groups_outside_graphs())
                known = None if self._deepest is None else self._deepest[1]
                if newest is not None:
                    self._deepest = newest[0], _with_known(newest[1], known)
        # A group without holder and cycle may have one at a later inspection.
        all_held = all(one.chains or one.cycle for one in self._inspections.values())
        is_complete = bool(self._inspections or self._deepest) and all_held
        wants_more = not is_complete or self._wants_sites(suspected)
        self._note_sites()
        interval = self.n_steps // 2 if wants_more else 2 * self.n_steps
        self._inspect_from = self.n_steps + max(_MIN_INSPECTION_INTERVAL, interval)

    def _note_sites(self) -> None:
        """Note where the storages of sampled steps that have aged came from.

        They may be freed later while others of their kind come: in a queue that is read too slowly.
        """
        for address, storage in self._live_tensors.storages():
            stack = self._sites.stack_of(address) if storage.is_aged else ()
            if stack and storage.first_step in self._sites.steps:
                at = self._bytes_at.setdefault(storage.kind, {})
                at[stack[0]] = at.get(stack[0], 0) + max(storage.bytes, 1)

    def _groups_outside_graphs(self) -> set[SiteGroup]:
        return {group for group, one in self._inspections.items() if not one.is_in_graph}

    def _has_deep_graph(self) -> bool:
        return self._graph_rises() or any(one.is_in_graph for one in self._inspections.values())

    def _inspect_at_end(self) -> None:
        """Inspect what was not inspected yet, while the program's modules still exist."""
        inspected = {kind for kind, _ in self._inspections}
        growing = growing_kinds(self._series)
        suspected = (suspected_kinds(self._series) | growing) - inspected
        self._reallocated = set(reallocated(self._series, growing)) - {
            (kind.device, kind.dtype)
            for (kind, _), one in self._inspections.items()
            if one.n_enlarged
        }
        unknown_graph = self._graph_rises() and self._deepest is None
        if suspected or self._reallocated or unknown_graph:
            self._inspect(suspected)

    def _classify(self) -> tuple[tuple[Leak, ...], int]:
        """The leaks, and the number of steps over which growth was evaluated."""
        steps = [one.step for one in self._series.samples]
        if len(steps) < MIN_POINTS or steps[-1] - steps[0] < MIN_STEPS:
            return (), 0
        host = self._host.leak(self._host_trend(is_final=True))
        if host is not None:
            host = replace(host, growth=growth(*self._series.host(self._host.block_bytes)))
        evidence = leak_classifier.Evidence(
            self._series,
            self._live_tensors,
            self._sites,
            self._inspections,
            self._bytes_at,
            self._deepest,
            host,
            self._sampler.workers.leak(),
        )
        return leak_classifier.classify(evidence), steps[-1] - steps[0]

    def _result(self) -> LiveMemory:
        leaks, n_evaluated_steps = self._classify()
        unexplained = None if leaks else self._host_trend(is_final=True)
        if self._host.leak(unexplained) is not None:
            unexplained = None  # what fills a container up to its limit is no leak
        exceeded = next((one.step for one in self._series.samples if one.has_more_nodes), None)
        if exceeded is not None:
            self._not_measured.append(
                f"From step {exceeded} on there were at times more than {MAX_NODES:,} graph nodes, "
                "up to which they are counted."
            )
        if self._live_tensors.has_more:
            self._not_measured.append(
                f"There were at times more than {MAX_STORAGES:,} tensors, up to which they are "
                "counted."
            )
        if self._first_step and not self._live_tensors.has_earlier:
            self._not_measured.append(
                "Tensors from before the first step are not counted: among so many objects the "
                "search for them would have taken too large a share of so short a run."
            )
        torch = sys.modules.get("torch")
        return LiveMemory(
            name=self.name,
            step_definition=self.step_definition,
            n_steps=self.n_steps,
            monitored_ns=self._clock.monitored_ns(),
            began_unix_us=self._clock.began_unix_us,
            samples=tuple(one.to_model() for one in self._series.samples),
            leaks=leaks,
            n_evaluated_steps=n_evaluated_steps,
            not_measured=tuple(self._not_measured),
            cost=replace(self._clock.cost(), memory_bytes=self._live_tensors.most_bytes),
            torch=None if torch is None else str(torch.__version__),
            devices=tuple(environment.device_names()),
            argv=tuple(sys.argv),
            unexplained_per_step_bytes=None if unexplained is None else round(unexplained.per_step),
        )

    def _release(self) -> None:
        self._sites.retain(lambda _: False)
        self._live_tensors.end()
        self._lines.end()
        self._host.end()


def _with_known(newest: Inspection, before: Inspection | None) -> Inspection:
    """The newest inspection, with the site and holders that an earlier one has found.

    Later the tensors of sampled steps may be gone, while others have come.
    """
    if before is None or (newest.is_hidden and not before.is_in_graph):
        return before or newest
    held = newest if newest.chains or newest.cycle else before
    stack, closed_at = newest.stack or before.stack, newest.closed_at or before.closed_at
    return replace(newest, stack=stack, chains=held.chains, limit=held.limit, closed_at=closed_at)
