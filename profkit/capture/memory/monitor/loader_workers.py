"""The memory of DataLoader workers, which are processes of their own.

A worker starts as a fork, and shares all memory with the main process until either writes to it.
Reading a Python object writes its reference count, so a dataset that stores its samples in lists
and dicts is copied into each worker as it is read. Resident memory does not show this, as shared
pages are resident too; private memory does. Anonymous memory distinguishes copies from what the
worker allocates: a copy replaces a shared page, an allocation adds one. Only allocations in memory
that the main process had freed replace shared pages too, so that many bytes may be either.

Measuring a process makes the system visit all its pages, some 40 ms for a gigabyte. So one worker
is measured, now and then; a DataLoader distributes its batches evenly.

Source: ``/proc/[pid]/smaps_rollup`` in proc(5); pytorch/pytorch#13246.
"""

import math
import multiprocessing.process
from collections.abc import Iterator
from dataclasses import field, replace
from pathlib import Path
from typing import Final

import numpy as np

from profkit.capture.memory.monitor.allocation_sites import with_site
from profkit.capture.memory.monitor.dataset_containers import Addition, find_addition
from profkit.capture.memory.monitor.series import MAX_SAMPLES, growth_of
from profkit.capture.process.malloc_stats import Heap, read_resident
from profkit.dataclass import dataclass
from profkit.index.trend import Trend, median_slope
from profkit.model.growth import growth
from profkit.model.live_memory import Chain, Leak

MIN_BYTES_PER_STEP: Final = 8192.0
"""Least growth of a worker that is reported, in bytes per step: two pages, as parts of its
interpreter are copied too."""
MIN_UNCERTAIN_BYTES: Final = 64 << 10
"""Growth of loader workers per step, of unknown cause, that is mentioned."""
_SAMPLES_OF_GROWTH: Final = 2
"""Measurements of a worker after which its data set is looked for."""
_MAX_SEARCHES: Final = 3
_MAIN_SHARE: Final = 0.5
"""Share of the growth that copies must be for it to be no container's."""
_WORKER_NAMES: Final = frozenset({"pt_data_worker"})
"""torch's names for the main thread of a worker."""
_KIB: Final = 1024
_NS_PER_BYTE: Final = 0.04
"""Time to measure a process: 9 ms for 220 MB resident, with Linux 6.18."""
_INTERVAL_DIVISOR: Final = 3
"""Steps between two measurements: this part of the steps that the worker has been measured for, and
at least the minimum."""
_MIN_INTERVAL: Final = 4
"""Least number of steps between two measurements, or two looks for workers."""


@dataclass
class _Measured:
    """A worker that is or was measured.

    Attributes:
        n: Least number of workers at any measurement.
        may_be_traced: Whether it may have been forked while its parent was being traced.
        free_bytes: Free bytes in its parent's heap, in which the worker can allocate without
            adding pages; None if not known.
        samples: Step, private bytes, shared with no other process, and anonymous bytes, which
            belong to no file, shared with the parent or not: copying a page does not change them.
    """

    pid: int
    n: int
    may_be_traced: bool
    free_bytes: int | None
    samples: list[tuple[int, int, int]] = field(default_factory=list)


class Workers:
    """Measures one DataLoader worker, and another one once that has ended.

    Args:
        heap: The allocators of this process, from which the workers are forked.

    Attributes:
        uncertain_per_step: Growth per step that the program may or may not have allocated, as
            :meth:`find_leak` has found it; 0 without.
    """

    def __init__(self, heap: Heap) -> None:
        self.uncertain_per_step = 0
        self._heap = heap
        self._next_step = 0
        self._was_tracing = False
        self._current: _Measured | None = None
        self._longest: _Measured | None = None
        self._addition: Addition | None = None
        self._n_searches = 0

    def note_tracing(self) -> None:
        """Note that steps are being traced.

        A worker forked meanwhile inherits torch's profiler, which records its allocations as long
        as it lives: some hundred bytes for each tensor, which are profkit's and not the program's.
        """
        self._was_tracing = True

    def estimate_ns(self, step: int) -> int | None:
        """Return the expected time of a measurement at the end of a step; None if none is due."""
        if step < self._next_step:
            return None

        was_tracing, self._was_tracing = self._was_tracing, False
        pids = list(_worker_pids())
        if not pids:
            self._next_step = step + _MIN_INTERVAL
            return None

        if self._current is None or self._current.pid not in pids:
            self._update_longest()
            self._current = _Measured(pids[0], len(pids), was_tracing, self._heap.free_bytes())

        self._current.n = min(self._current.n, len(pids))
        return round((resident_bytes(self._current.pid) or 0) * _NS_PER_BYTE)

    def read(self, step: int) -> int | None:
        """Measure the private bytes of the current worker; None if the system reports none."""
        samples = [] if self._current is None else self._current.samples
        n_measured = step - samples[0][0] if samples else 0
        self._next_step = step + max(_MIN_INTERVAL, n_measured // _INTERVAL_DIVISOR)
        sizes = None if self._current is None else _read_sizes(self._current.pid)
        if self._current is None or sizes is None:
            return None

        # While the loop runs, whose loader may be gone at the end.
        is_due = self._addition is None and len(self._current.samples) == _SAMPLES_OF_GROWTH
        if is_due and self._n_searches < _MAX_SEARCHES:
            self._n_searches += 1
            self._addition = find_addition()

        self._current.samples.append((step, *sizes))
        if len(self._current.samples) > MAX_SAMPLES:
            del self._current.samples[: MAX_SAMPLES // 2 : 2]
        return sizes[0]

    def find_leak(self) -> Leak | None:
        """Find the growth of all workers, extrapolated from the one measured longest, or None."""
        self._update_longest()
        worker = self._longest
        if worker is None or not worker.samples:
            return None

        # Anonymous memory has what the inherited profiler records, and copies do not change it.
        steps, private, anonymous = np.array(worker.samples, np.int64).T
        grown = (private - anonymous if worker.may_be_traced else private).astype(np.float64)
        trend = growth_of((steps, grown), MIN_BYTES_PER_STEP)
        if trend is None:
            every = growth_of((steps, private.astype(np.float64)), MIN_BYTES_PER_STEP)
            return None if every is None else self._build_uncertain(worker, every)

        made = 0.0
        if not worker.may_be_traced:
            late = steps >= trend.first_step
            made = max(median_slope(steps[late], anonymous[late].astype(np.float64)), 0.0)

        # What fits into memory that the main process had freed may be copied or allocated.
        n_steps = trend.last_step - trend.first_step
        either = math.inf if worker.free_bytes is None else worker.free_bytes / n_steps
        copied = max(trend.per_step - made - either, 0.0)
        if worker.may_be_traced and not copied:
            return None

        leak = replace(
            _build_leak(worker, trend),
            copied_share=copied / trend.per_step,
            made_share=min(made / trend.per_step, 1.0),
            growth=growth(steps, worker.n * grown),
        )
        is_copied = leak.copied_share >= _MAIN_SHARE
        return leak if self._addition is None or is_copied else _with_addition(leak, self._addition)

    def _build_uncertain(self, worker: _Measured, trend: Trend) -> Leak | None:
        """Build growth that may be of records of operators; None if nothing else explains it."""
        addition, leak = self._addition, _build_leak(worker, trend)
        if addition is None or addition.is_by_sample or leak.per_step_bytes < MIN_UNCERTAIN_BYTES:
            self.uncertain_per_step = leak.per_step_bytes
            return None
        steps, private, _ = np.array(worker.samples, np.int64).T
        leak = replace(leak, growth=growth(steps, worker.n * private.astype(np.float64)))
        return _with_addition(leak, addition)

    def _update_longest(self) -> None:
        n_known = len(self._longest.samples) if self._longest is not None else 0
        if self._current is not None and len(self._current.samples) >= n_known:
            self._longest = self._current


def _build_leak(worker: _Measured, trend: Trend) -> Leak:
    """Build the growth of all workers from that of one."""
    n_steps = trend.last_step - trend.first_step
    return Leak(
        kind="workers",
        device="workers",
        per_step_bytes=round(worker.n * trend.per_step),
        bytes=round(worker.n * trend.per_step * n_steps),
        n=worker.n,
        first_step=trend.first_step,
        last_step=trend.last_step,
        type="",
    )


def _with_addition(leak: Leak, addition: Addition) -> Leak:
    """Return a leak with the container of the data set that most likely grows."""
    owner, _, attribute = addition.name.rpartition(".")
    chain = Chain(
        "instance",
        (owner, f".{attribute}"),
        addition.container,
        name=addition.name,
        is_by_sample=addition.is_by_sample,
    )
    # The line is read in the source, and was not seen to run.
    sited = with_site(replace(leak, chains=(chain,)), (addition.place,))
    return replace(sited, stack_basis="unknown")


def _worker_pids() -> Iterator[int]:
    """Yield the process ids of DataLoader workers, the oldest first."""
    # ``active_children()`` would also reap children that have ended, as only the program may.
    children = list(multiprocessing.process._children)  # type: ignore[attr-defined]  # noqa: SLF001
    running = [vars(child).get("_popen") for child in children]
    for pid in sorted(process.pid for process in running if process is not None):
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            continue
        if name in _WORKER_NAMES:
            yield pid


def resident_bytes(pid: int) -> int | None:
    """Return the resident memory of a process, or None if the system does not report it."""
    resident = read_resident(pid)
    return None if resident is None else resident.bytes


def _read_sizes(pid: int) -> tuple[int, int] | None:
    """Read private and anonymous bytes of a process; None if the system reports none."""
    kib = {"Private_Clean": 0, "Private_Dirty": 0, "Private_Hugetlb": 0, "Anonymous": 0}
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        for name, _, value in (line.partition(":") for line in lines):
            if name in kib:
                kib[name] = int(value.split()[0])
    except (OSError, ValueError, IndexError):
        return None
    anonymous = kib.pop("Anonymous")
    # A process that is ending has no pages left.
    if not anonymous:
        return None
    return sum(kib.values()) * _KIB, anonymous * _KIB
