"""The memory of a loader's workers, which are processes of their own.

A worker begins as a fork, and shares all that the main process had until one of both writes to it.
To read an object of Python's is to write its reference count, so a dataset that keeps its samples
in lists and dicts is copied into each worker as it is read. Resident memory does not show it:
pages that are shared are resident too. What a worker has to itself does. What it holds at all
tells copies from what it makes: a copy takes the place of a page that it had, what it makes comes
on top. Only what it makes where the main process had freed something takes such a place too, so as
many bytes as were free there may be either.

Reading it makes the system go through all pages of the process, some 40 ms for a gigabyte. So one
worker is followed, now and then; a loader deals its batches to all alike.

Source: ``/proc/[pid]/smaps_rollup`` in proc(5); pytorch/pytorch#13246.
"""

import math
import multiprocessing.process
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from profkit.capture.malloc_stats import Heap
from profkit.capture.memory.monitor.series import MOST_LOOKS, growth_of
from profkit.index.trend import Trend, median_slope

LEAST_PER_STEP: Final = 8192.0
"""Bytes a step below which a worker is not said to grow: two pages, as it copies some of its
interpreter too."""
_NAMES: Final = frozenset({"pt_data_worker"})
"""What torch calls the main thread of a worker."""
_KIB: Final = 1024
_NS_A_BYTE: Final = 0.04
"""What reading takes: 9 ms for 220 MB that are resident, with Linux 6.18."""
_APART: Final = 3
"""Readings lie apart by this part of the steps so far, and by so many steps at least."""
_LEAST_APART: Final = 4


class WorkerMemory(NamedTuple):
    """What one worker had at the end of a step.

    Attributes:
        step: The step.
        private_bytes: What it shares with no other process.
        own_bytes: What it holds that is no file's, shared with the process it was forked from or
            not: copying a page adds nothing to it.
    """

    step: int
    private_bytes: int
    own_bytes: int


@dataclass(frozen=True)
class WorkerGrowth:
    """Workers whose memory grows.

    Attributes:
        n: How many there are.
        per_step_bytes: By how much all of them grow, as one of them did.
        copied_share: How much of that is copies of what the main process has, at the least; 0 to
            1.
        made_share: How much of it the workers have made, at the least; 0 to 1.
        first_step: The first step of the stretch that grew.
        last_step: The last step of it.
    """

    n: int
    per_step_bytes: float
    copied_share: float
    made_share: float
    first_step: int
    last_step: int


@dataclass
class _Followed:
    """A worker that is followed, or was.

    Attributes:
        pid: Its process.
        n: How many workers there were with it, at the least.
        may_record: Whether it may have begun while its parent was recorded.
        free_bytes: What was free in its parent's heap, where the worker may make what is its own
            unseen; None if not known.
        readings: What it had.
    """

    pid: int
    n: int
    may_record: bool
    free_bytes: int | None
    readings: list[WorkerMemory] = field(default_factory=list)


class Workers:
    """Follows one of the loader's workers, and the next one when that has ended.

    Args:
        heap: The allocators of this process, from which the workers are forked.
    """

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._next = 0
        self._was_recorded = False
        self._now: _Followed | None = None
        self._longest: _Followed | None = None

    def recorded(self) -> None:
        """Steps are recorded.

        A worker that is forked meanwhile inherits torch's profiler, which notes its allocations
        for as long as it lives: some hundred bytes for each tensor, which is our doing.
        """
        self._was_recorded = True

    def due_ns(self, step: int) -> int | None:
        """What a reading is likely to take now; None where none is due.

        Args:
            step: The step that has ended.
        """
        if step < self._next:
            return None
        was_recorded, self._was_recorded = self._was_recorded, False
        pids = list(_workers())
        if not pids:
            self._next = step + _LEAST_APART
            return None
        if self._now is None or self._now.pid not in pids:
            self._keep_longest()
            self._now = _Followed(pids[0], len(pids), was_recorded, self._heap.free_bytes())
        self._now.n = min(self._now.n, len(pids))
        return round(_resident_bytes(self._now.pid) * _NS_A_BYTE)

    def read(self, step: int) -> int | None:
        """Private bytes of the worker that is followed; None where the system does not tell.

        Args:
            step: The step that has ended.
        """
        self._next = step + max(_LEAST_APART, step // _APART)
        found = None if self._now is None else _read(self._now.pid, step)
        if self._now is None or found is None:
            return None
        self._now.readings.append(found)
        if len(self._now.readings) > MOST_LOOKS:
            del self._now.readings[: MOST_LOOKS // 2 : 2]
        return found.private_bytes

    def growth(self) -> WorkerGrowth | None:
        """How the memory of all workers grows, judged by the worker that was followed longest."""
        self._keep_longest()
        followed = self._longest
        if followed is None or not followed.readings:
            return None
        steps, private, own = np.array(followed.readings, np.int64).T
        grown = (private - own if followed.may_record else private).astype(np.float64)
        trend = growth_of((steps, grown), LEAST_PER_STEP)
        if trend is None:
            return None
        made = 0.0
        if not followed.may_record:
            stretch = steps >= trend.first_step
            made = max(median_slope(steps[stretch], own[stretch].astype(np.float64)), 0.0)
        copied = max(trend.per_step - made - _may_be_either(followed, trend), 0.0)
        if followed.may_record and not copied:
            return None
        return WorkerGrowth(
            n=followed.n,
            per_step_bytes=followed.n * trend.per_step,
            copied_share=copied / trend.per_step,
            made_share=min(made / trend.per_step, 1.0),
            first_step=trend.first_step,
            last_step=trend.last_step,
        )

    def _keep_longest(self) -> None:
        n_known = len(self._longest.readings) if self._longest is not None else 0
        if self._now is not None and len(self._now.readings) >= n_known:
            self._longest = self._now


def _may_be_either(followed: _Followed, trend: Trend) -> float:
    """Bytes a step that the worker may have made where its parent had freed something."""
    if followed.free_bytes is None:
        return math.inf
    return followed.free_bytes / (trend.last_step - trend.first_step)


def _workers() -> Iterator[int]:
    """Processes that run loader's workers, the oldest first."""
    children = list(multiprocessing.process._children)  # type: ignore[attr-defined]  # noqa: SLF001
    running = [vars(child).get("_popen") for child in children]
    for pid in sorted(one.pid for one in running if one is not None):
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            continue
        if name in _NAMES:
            yield pid


def _resident_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _read(pid: int, step: int) -> WorkerMemory | None:
    """What a process has to itself, and what it holds."""
    kib = {"Private_Clean": 0, "Private_Dirty": 0, "Private_Hugetlb": 0, "Anonymous": 0}
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        for name, _, figure in (line.partition(":") for line in lines):
            if name in kib:
                kib[name] = int(figure.split()[0])
    except (OSError, ValueError, IndexError):
        return None
    own = kib.pop("Anonymous")
    # A process that is ending has no pages left.
    return WorkerMemory(step, sum(kib.values()) * _KIB, own * _KIB) if own else None
