"""What the memory monitor measures with, and the samples so far."""

import math
import sys
from typing import Final

from profkit.capture.memory.monitor.allocation_sites import AllocationSampler
from profkit.capture.memory.monitor.budget import OVERDUE, Budget, Clock, Work
from profkit.capture.memory.monitor.host_growth import (
    MAX_BLOCK_BYTES,
    MIN_BYTES_PER_STEP,
    MIN_MAPPED_BYTES_PER_STEP,
    MIN_SCANS,
    HostGrowthTracker,
    mapped_leak,
)
from profkit.capture.memory.monitor.live_tensors import LiveTensors
from profkit.capture.memory.monitor.native_growth import MAX_MEASUREMENTS
from profkit.capture.memory.monitor.sampler import Sampler
from profkit.capture.memory.monitor.series import Series, TracedSteps, growth_of
from profkit.capture.memory.monitor.tracemalloc_lines import TracemallocLines
from profkit.capture.process.compiling import has_compiled
from profkit.capture.process.cpu_speed import slowness
from profkit.index.trend import Trend
from profkit.model.live_memory import Leak

_SAMPLING: Final[tuple[Work, ...]] = ("young", "evaluate")
_PASS_NS: Final = 15_000_000
"""What a pass over all objects takes at least, for those that ``import torch`` makes."""
_NS_PER_BLOCK: Final = 11
"""What a pass takes more for each block of Python's allocator, some 2.6 per object."""
_NS_PER_BLOCK_OF_HOST_SCAN: Final = 1_300
"""What a scan of host objects takes for each such block."""
_NS_PER_BLOCK_OF_COMPILERS: Final = 3_000
"""The same after something was compiled, which leaves graphs of small objects behind."""
_PASSES_OF_HOST_SCAN: Final = 8
"""As how many passes over all objects a scan of host objects takes, in this process."""
_CONTAINERS_PART: Final = 0.3
"""The part of that which a scan of containers alone takes."""
_MAX_SECOND_S: Final = 2.0
"""What the scan that makes the first one useful may take, in seconds of CPU time, though both may
take more than is always allowed."""
_MAX_AT_END_S: Final = 0.3
"""What a program that has ended waits for at most, in seconds of CPU time."""
_MAX_HOST_SCANS: Final = 4
"""Scans of host objects, which cost more than anything else."""


class Instruments:
    """The parts of a monitor that measure; when they do is decided elsewhere.

    Args:
        budget: Limits of the overhead.
        tracemalloc: Whether to attribute Python objects to source lines at all steps.

    Attributes:
        clock: The time spent so far.
        live_tensors: The tensors that are alive.
        sites: Where some of them were allocated.
        lines: Where Python objects were allocated, if all steps are traced.
        host: Growth of the host's memory that no tensor explains.
        sampler: Takes samples.
        series: The samples.
        first_step: The first step at whose end a sample was taken; 0 before.
    """

    def __init__(self, budget: Budget | None = None, *, tracemalloc: bool = False) -> None:
        self.clock = Clock(budget, slowness())
        self.live_tensors = LiveTensors(self.clock)
        self.sites = AllocationSampler()
        self.lines = TracemallocLines(enabled=tracemalloc)
        self.host = HostGrowthTracker(self.lines)
        self.sampler = Sampler(self.clock, self.live_tensors, self.host.tracing_bytes)
        self.series = Series()
        self.first_step = 0
        self._pass_ns = 0

    @property
    def is_recording(self) -> bool:
        """Tell whether sites are sampled, allocations traced or the heap measured in this step."""
        return self.sites.is_on or self.host.is_sampling

    @property
    def is_cheap(self) -> bool:
        """Tell whether samples have stayed within their share of the time."""
        return all(map(self.clock.is_within_share, _SAMPLING))

    def begin(self, step: int) -> None:
        """Begin to track tensors at the end of the first step."""
        self.first_step = step
        self.lines.begin()
        self.live_tensors.begin()
        self._pass_ns = _PASS_NS + _NS_PER_BLOCK * sys.getallocatedblocks()

    def steps_to_wait(self, step: int) -> int:
        """Return after how many steps to look again whether a sample is due; 0 if it is now.

        It is if affordable, and regardless of its cost if overdue, so that samples always cover
        most of the run: some fifteen in a hundred steps, nine more in a thousand. Otherwise this is
        half of the steps that it probably takes: they may become longer.
        """
        n_until_overdue = math.ceil(OVERDUE * self.series.samples[-1].step - step)
        if n_until_overdue <= 0 or all(map(self.clock.affords, _SAMPLING)):
            return 0

        # Steps may become longer, and the sample affordable earlier than expected.
        n_expected = max(map(self.clock.steps_until_afforded, _SAMPLING)) // 2
        return max(1, min(n_expected, n_until_overdue))

    def find_earlier_if_affordable(self, step: int) -> None:
        """Find what existed before the first step, once its share of the time allows that.

        Among a million objects that takes as long as two steps of 20 ms.
        """
        if self.clock.affords("first", self._pass_ns):
            self.find_earlier(step)

    def find_earlier(self, step: int) -> None:
        """Find what existed before the first step, unless it is known.

        It has been alive all the time, and so is added to the samples so far.
        """
        if self.live_tensors.has_earlier:
            return
        with self.clock.spending("first"), self.sampler.excluding_own():
            earlier = self.live_tensors.find_earlier(self.first_step, step)
        self.series.add_earlier(earlier)

    def wants_heap_measured(self) -> bool:
        """Tell whether the heap is to be measured before all of Python's objects are scanned.

        This takes milliseconds. If operators allocate what grows, a scan would find nothing.
        """
        has_failed = self.host.were_containers_compared and not self.host.n_scans
        return has_failed and not self.host.native.n_begun and self.clock.affords("lines")

    def affords_host_scan(self) -> bool:
        """Tell whether another scan of host objects is affordable.

        It is the longest that the program ever waits: 1.3 s for the objects that ``import torch``
        makes, over 4 s with those of its compiler. Where such a pass was made already, this machine
        and these objects are known. One scan alone tells nothing, so a second, short one follows
        it even if both take more than the budget has.
        """
        ns_per_block = _NS_PER_BLOCK_OF_COMPILERS if has_compiled() else _NS_PER_BLOCK_OF_HOST_SCAN
        by_blocks_ns = ns_per_block * sys.getallocatedblocks()
        by_passes_ns = _PASSES_OF_HOST_SCAN * self.clock.mean_ns("first")

        expected_ns = max(by_blocks_ns, by_passes_ns)
        if not self.host.were_containers_compared:
            return self.clock.affords("containers", _CONTAINERS_PART * expected_ns)
        if self.clock.affords("host", expected_ns):
            return True
        is_second = self.host.n_scans == MIN_SCANS - 1
        return is_second and self.clock.affords_one("host", at_most_s=_MAX_SECOND_S)

    def sample(self, step: int, *, is_tracing: bool, is_heap_own: bool) -> None:
        """Take a sample at the end of a step, of all objects if some were missed.

        Args:
            is_tracing: Whether a trace is being recorded, whose memory is not the program's.
            is_heap_own: Whether what the heap has grown by may be profkit's.
        """
        work: Work = "young"
        if self.live_tensors.has_earlier and self.live_tensors.n_missed > 0:
            work = self._choose_scan()

        n_samples = len(self.series.samples)
        sample = self.sampler.take_sample(
            step, n_samples, work, is_tracing=is_tracing, is_heap_own=is_heap_own
        )
        self.sampler.exclude_recording(sample, self.series)
        self.series.add(sample)

    def _choose_scan(self) -> Work:
        """Choose how tensors are scanned now that collections have promoted some of them unseen."""
        if self.clock.affords("full"):
            return "full"

        # Of many small tensors most are missed, so that their growth seems to slow down.
        rises = self.series.heap_rises(MIN_BYTES_PER_STEP)
        return "missed" if rises and self.clock.affords("missed") else "young"

    def existed(self, address: int) -> bool:
        """Return whether a storage was there at the last sample."""
        return self.live_tensors.storage(address) is not None

    def is_recent(self, address: int) -> bool:
        """Return whether a tracked storage was allocated since monitoring began."""
        storage = self.live_tensors.storage(address)
        return storage is not None and storage.first_step > self.first_step

    def stop_recording(self, step: int) -> None:
        """Stop what would disturb a trace: the step was recorded, or the next one will be."""
        self.sites.end()
        if self.host.growth.next_step:
            self._note_traced(step, self.host.growth.own_bytes())
        self.host.end()

    def advance_tracing(self, step: int) -> bool:
        """Note a step whose allocations were traced, and return whether tracing goes on."""
        growth = self.host.growth
        if growth.next_step <= step:
            tracing_bytes = growth.own_bytes()
            with self.clock.spending("lines"), self.sampler.excluding_own():
                growth.advance(step)
            if not growth.next_step:
                self._note_traced(step, tracing_bytes)
                self.sampler.exclude_jump(step, self.series)
        return bool(growth.next_step)

    def advance_measuring(self, step: int) -> bool:
        """Note a step whose heap was measured, and return whether measuring goes on."""
        with self.clock.spending("lines"), self.sampler.excluding_own():
            is_done = self.host.native.advance(step)
        if is_done:
            self.sampler.exclude_jump(step, self.series)
        return not is_done

    def scan_host(self, step: int) -> bool:
        """Scan Python's objects if the host's memory grows beyond its tensors.

        Returns:
            Whether they were scanned.
        """
        with self.clock.spending("evaluate"):
            trend = self.host_trend()
            is_explained = trend is not None and self.host.is_explained(trend)
        grows = trend is not None or self.host.has_traced_growth
        if self.host.n_scans >= _MAX_HOST_SCANS or not grows or is_explained:
            return False

        if not self.host.were_containers_compared:
            with self.clock.spending("containers"), self.sampler.excluding_own():
                self.host.scan_containers(step, self.sampler.n_own_blocks)
            self._judge_containers()
            return True

        with self.clock.spending("host"), self.sampler.excluding_own():
            # Samples with equal amounts share one dict.
            amounts = {id(sample.amounts): sample.amounts for sample in self.series.samples}
            own_containers = list(amounts.values())
            self.host.scan(step, own_containers, self.sampler.n_own_blocks)
        return True

    def _judge_containers(self) -> None:
        """Forget the scans of containers if these are not what grows."""
        # The mean size of a block is known only now, and with it the growth.
        if self.host.were_containers_compared:
            with self.clock.spending("evaluate"):
                if not self.host.have_containers_grown(self.host_trend()):
                    self.host.forget_containers()

    def scan_host_at_end(self, step: int) -> None:
        """Scan Python's objects once more if the run was too short for the scans that growth needs.

        Without the second one nothing is known of what grows, not even its type. The program has
        ended, and so waits for it only once.
        """
        is_lacking = 0 < self.host.n_scans < MIN_SCANS
        work: Work = "host" if self.host.were_containers_compared else "containers"
        is_short = self.clock.affords_one(work, at_most_s=_MAX_AT_END_S)
        if is_lacking and is_short and self.host_trend(is_final=True):
            self.scan_host(step)

    def can_trace_lines(self) -> bool:
        """Return whether the lines of Python's allocations are unknown, and affordable."""
        are_unknown = not self.lines.is_enabled and self.host.growth.per_step is None
        # Before that, the next scan of containers may find them for less.
        is_last_way = self.host.were_containers_compared
        return are_unknown and is_last_way and self.clock.affords("lines")

    def host_grows(self) -> bool:
        """Tell whether the host's memory grows beyond its tensors."""
        with self.clock.spending("evaluate"):
            return self.host_trend() is not None

    def is_native(self) -> bool:
        """Return whether growth seems to be native, and its lines and operators are unknown."""
        if self.host.native.n_begun >= MAX_MEASUREMENTS:
            return False
        leak = self.host.find_leak(self.host_trend())
        return leak is not None and leak.kind == "native" and not leak.stack

    def trace_lines(self, step: int) -> bool:
        """Trace Python's allocations, and return whether tracing has begun."""
        self.host.growth.begin(step)
        return bool(self.host.growth.next_step)

    def measure_heap(self, step: int) -> bool:
        """Measure the heap at each line and operator, and return whether measuring has begun."""
        with self.clock.spending("lines"), self.sampler.excluding_own():
            self.host.native.begin(step)
        return self.host.native.is_on

    def host_trend(self, *, is_final: bool = False) -> Trend | None:
        """Return the growth of the heap beyond tensors and graphs, or None.

        Args:
            is_final: Whether it is reported, so that tracing must not have led to it.
        """
        host = self.series.unexplained_heap(self.host.block_bytes)
        trend = growth_of(host, MIN_BYTES_PER_STEP)
        if is_final and trend and not self.series.is_seen_without_tracing(host, trend):
            return None
        return trend

    def find_host_leak(self, *, is_final: bool = False) -> Leak | None:
        """Return the growth of the heap beyond tensors and graphs as a leak, or None."""
        return self.host.find_leak(self.host_trend(is_final=is_final))

    def find_mapped_leak(self) -> Leak | None:
        """Return the growth of memory that was mapped beside the heap, or None.

        Python's small objects are in memory of this kind. So it must grow whether their blocks
        count nothing or as much as they can have. And it must grow by more than the pages of large
        blocks that the heap has, which become resident one by one while such a buffer is filled.
        """
        trends = [
            growth_of(self.series.mapped(block_bytes), MIN_MAPPED_BYTES_PER_STEP)
            for block_bytes in (0.0, MAX_BLOCK_BYTES)
        ]
        grown = [trend for trend in trends if trend is not None]
        if len(grown) < len(trends):
            return None

        slowest = min(grown, key=lambda trend: trend.per_step)
        total = slowest.per_step * (slowest.last_step - slowest.first_step)
        return mapped_leak(slowest) if total > self.sampler.most_untouched_bytes() else None

    def stop(self) -> None:
        """Stop sampling sites, tracing and measuring at the end of monitoring."""
        self.sites.end()
        self.host.end()

    def release(self) -> None:
        """Release all that is tracked."""
        self.sites.retain(lambda _: False)
        self.live_tensors.end()
        self.lines.end()
        self.host.end()

    def _note_traced(self, step: int, tracing_bytes: int) -> None:
        """Note the steps since the last sample, in which allocations were traced."""
        first = self.series.samples[-1].step
        self.series.traced.append(TracedSteps(first, step, tracing_bytes))
