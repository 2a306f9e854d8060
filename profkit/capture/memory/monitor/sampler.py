"""Takes the memory sample of a step boundary: tensors, graphs, allocators, process and workers."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Final

from profkit.capture.memory.cuda import history
from profkit.capture.memory.holders.autograd_graphs import GraphWalk, grad_fns_of
from profkit.capture.memory.monitor.budget import OVERDUE, Clock, Work
from profkit.capture.memory.monitor.host_peak import HostPeaks
from profkit.capture.memory.monitor.live_tensors import LiveTensors
from profkit.capture.memory.monitor.loader_workers import Workers
from profkit.capture.memory.monitor.series import Lack, Sample, Series
from profkit.capture.process import devices
from profkit.capture.process.cpu_time import main_delayed_ns
from profkit.capture.process.malloc_stats import Allocated, Heap, read_resident
from profkit.capture.process.objects import no_torch_function
from profkit.capture.process.torch_features import shows_saved_tensors
from profkit.capture.recording.session import sessions
from profkit.index.trend import MIN_POINTS, median_slope
from profkit.readers.process_memory import garbage_collection_paused

MAX_NODES: Final = 20_000
"""Graph nodes walked per sample, some 60 ms: a larger graph needs no further evidence."""
_MAX_BLOCK_IN_ARENA: Final = 32 << 20
"""Larger blocks have memory of their own. Source: ``M_MMAP_THRESHOLD`` in mallopt(3)."""
_BYTES_INTERVAL: Final = 8
"""Samples between those that also measure the bytes saved by graphs, which takes five times as
long as counting nodes."""
_BYTES_OVERDUE: Final = 2
"""At this multiple of the last step with such bytes they are measured again regardless: where only
overdue samples are taken, eight of them are a factor of eight."""


class Sampler:
    """Measures memory at step boundaries, as far as the budget allows.

    Args:
        tracing_bytes: Returns the bytes of the records of allocations that profkit traces.

    Attributes:
        workers: Measures the DataLoader's workers.
        host_peaks: Follows the highest resident memory of the process.
    """

    def __init__(
        self, clock: Clock, live_tensors: LiveTensors, tracing_bytes: Callable[[], int]
    ) -> None:
        self._clock = clock
        self._live_tensors = live_tensors
        self._tracing_bytes = tracing_bytes
        self._heap = Heap()
        self.workers = Workers(self._heap)
        self.host_peaks = HostPeaks()
        self._excluded = Allocated(0, 0)
        self._is_at_boundary = False
        self._last_step = {"graphs": 0, "bytes": 0, "heap": 0}
        self._recorded_step = 0
        self._freed_bytes = sessions.freed_bytes

    def note_tracing(self, step: int) -> None:
        """Note that a trace is recorded in a step, whose memory is not the program's."""
        self.workers.note_tracing()
        self._recorded_step = self._recorded_step or step

    def exclude_recording(self, sample: Sample, series: Series) -> None:
        """Take the memory of a recording off earlier samples, once a sample is without it.

        A recording is held until it is written, which may be many steps after the recorded ones.
        """
        freed_bytes = sessions.freed_bytes - self._freed_bytes
        if sample.heap is not None and freed_bytes:
            series.lower_heap(self._recorded_step, sample, freed_bytes)
            self._freed_bytes = sessions.freed_bytes
            self._recorded_step = 0

    def take_sample(
        self, step: int, n_samples: int, work: Work, *, is_tracing: bool, is_heap_own: bool
    ) -> Sample:
        """Take a sample at the end of a step.

        Args:
            n_samples: Number of samples taken before.
            work: The kind of tensor scan.
            is_tracing: Whether a trace is being recorded, whose memory would be counted as well.
            is_heap_own: Whether what the heap has grown by may be profkit's: each start of
                ``tracemalloc`` leaves some 10 KB behind.
        """
        # Resident memory and the devices' are read with the tensors: all are of one moment.
        with self._clock.spending(work):
            amounts = self._live_tensors.scan(step, full=work != "young")
            resident = None if is_tracing else read_resident(os.getpid())
            device_bytes = _read_devices()

        is_due = (
            n_samples % _BYTES_INTERVAL == 0 or step >= _BYTES_OVERDUE * self._last_step["bytes"]
        )

        if is_tracing:
            self.note_tracing(step)
            self.host_peaks.skip()
        else:
            self.host_peaks.note(step, None if resident is None else resident.bytes)

        # The walk has a budget of its own: it costs more than the rest where graphs are large.
        n_nodes, graph_bytes, has_more = self._walk_graphs(step, with_bytes=is_due)

        # Where the machine gets busy, steps take longer that are the same.
        own_ns = self._clock.own_ns() + sessions.spent_ns + main_delayed_ns()
        ts_ns = self._clock.monitored_ns()

        is_heap_read = not is_heap_own and n_nodes is not None
        heap = self._read_heap_if_affordable(step) if is_heap_read else None
        return Sample(
            step,
            ts_ns,
            amounts,
            n_nodes,
            graph_bytes,
            resident,
            heap,
            *device_bytes,
            worker_bytes=self._read_worker(step),
            own_ns=own_ns,
            lacks=self._find_lack(has_more_nodes=has_more),
        )

    def _find_lack(self, *, has_more_nodes: bool) -> Lack:
        lacks = Lack.NODES if has_more_nodes else Lack(0)
        if self._live_tensors.is_at_limit:
            lacks |= Lack.TENSORS
        if self._live_tensors.n_missed:
            lacks |= Lack.PROMOTED
        return lacks

    @property
    def n_own_blocks(self) -> int:
        """Return how many blocks of Python's allocator were excluded so far."""
        return self._excluded.n_blocks

    @contextlib.contextmanager
    def excluding_boundary(self) -> Iterator[None]:
        """Exclude what the monitor retains of its work at the end of a step, within the budget.

        That is a kilobyte or two of samples and trends each time, a tenth of a small leak.
        """
        if not self._clock.affords("own"):
            yield
            return

        with self._clock.spending("own"):
            before = self._read_without_tracing()
        self._is_at_boundary = True
        try:
            yield
        finally:
            self._is_at_boundary = False
            with self._clock.spending("own"):
                self._exclude_since(before)

    @contextlib.contextmanager
    def excluding_own(self) -> Iterator[None]:
        """Exclude from later samples what is allocated while open and stays allocated."""
        # A boundary that is excluded has it.
        if self._is_at_boundary:
            yield
            return

        before = self._read_without_tracing()
        try:
            yield
        finally:
            self._exclude_since(before)

    def _exclude_since(self, before: Allocated | None) -> None:
        """Exclude what was allocated since an earlier reading."""
        after = self._read_without_tracing()
        if before is None or after is None:
            return
        added = (
            excluded + late - early
            for excluded, late, early in zip(self._excluded, after, before, strict=True)
        )
        self._excluded = Allocated(*(max(0, amount) for amount in added))

    def most_untouched_bytes(self) -> int:
        """Return an upper bound of the bytes on the heap that were not resident at first."""
        in_use = self._heap.in_use()
        return _MAX_BLOCK_IN_ARENA + (in_use[1] if in_use is not None else 0)

    def exclude_jump(self, step: int, series: Series) -> None:
        """Exclude what the heap has grown since the last sample beyond its pace until then.

        Allocations or lines were traced since, which leaves memory behind: tracebacks, and the
        lines of code objects.

        Args:
            step: The step that has ended.

        Source: ``_co_linearray`` of Python's code objects, which tracing a frame's lines fills.
        """
        steps, n_bytes = series.heap()
        now = self._read_heap()
        if now is None or len(steps) < MIN_POINTS:
            return
        expected = n_bytes[-1] + max(median_slope(steps, n_bytes), 0.0) * (step - steps[-1])
        jump = max(0, round(now.bytes - expected))
        self._excluded = self._excluded._replace(bytes=self._excluded.bytes + jump)

    def _read_heap_if_affordable(self, step: int) -> Allocated | None:
        """Read what the program has allocated, which takes milliseconds if much of it is free."""
        if history.is_filling():  # with each allocation on a device, the heap has an entry more
            return None
        if not self._clock.affords("heap") and step < OVERDUE * self._last_step["heap"]:
            return None
        self._last_step["heap"] = step
        with self._clock.spending("heap"):
            return self._read_heap()

    def _read_heap(self) -> Allocated | None:
        """Read what the program has allocated, without what was excluded."""
        now = self._read_without_tracing()
        if now is None:
            return None
        own = self._excluded
        return Allocated(now.bytes - own.bytes, now.n_blocks - own.n_blocks, now.free_bytes)

    def _read_without_tracing(self) -> Allocated | None:
        """Read what is allocated, without the records of traced allocations, which come and go."""
        now = self._heap.allocated()
        return None if now is None else now._replace(bytes=now.bytes - self._tracing_bytes())

    def _read_worker(self, step: int) -> int | None:
        """Read the private bytes of one DataLoader worker; None if not measured at this step."""
        due_ns = self.workers.estimate_ns(step)
        if due_ns is None or not self._clock.affords("workers", due_ns):
            return None
        with self._clock.spending("workers"):
            return self.workers.read(step)

    def _walk_graphs(self, step: int, *, with_bytes: bool) -> tuple[int | None, int | None, bool]:
        """Count the nodes of all graphs, and bytes saved beyond live tensors; None if over budget.

        Also whether there are more nodes than the limit, up to which they were counted.
        """
        if not self._clock.affords("graphs") and step < OVERDUE * self._last_step["graphs"]:
            return None, None, False

        self._last_step["graphs"] = step
        with self._clock.spending("graphs"), garbage_collection_paused(), no_torch_function():
            nodes = grad_fns_of(self._live_tensors.roots())
            walk = GraphWalk(MAX_NODES)
            n_bytes = None
            if with_bytes and shows_saved_tensors():
                self._last_step["bytes"] = step
                counted = {address for address, _ in self._live_tensors.storages()}
                n_bytes = walk.sum_saved_bytes(nodes, counted)
            else:
                walk.count(nodes)
            return walk.n_nodes, n_bytes if walk.is_exact else None, not walk.is_exact


def _read_devices() -> tuple[int | None, int | None]:
    """Read allocated and reserved bytes of all devices in use, or None and None without one."""
    memory = list(devices.read_device_memory())
    if not memory:
        return None, None
    return sum(allocated for _, allocated, _ in memory), sum(reserved for _, _, reserved in memory)
