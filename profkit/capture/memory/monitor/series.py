"""The samples of a run, in bounded memory, and the growth that they show."""

import math
from collections.abc import Callable, Container
from dataclasses import field
from enum import Flag, auto
from itertools import islice, takewhile
from typing import Final, NamedTuple

import numpy as np

from profkit.capture.memory.monitor.live_tensors import MIN_AGE_STEPS, Amount, Earlier, TensorKind
from profkit.capture.process.malloc_stats import Allocated, Resident
from profkit.dataclass import dataclass
from profkit.index.trend import (
    MIN_POINTS,
    RISING_SAMPLES,
    Floats,
    Trend,
    is_rising,
    lasting_growth,
    median,
    median_slope,
)
from profkit.model.events import Int64s
from profkit.model.live_memory import MemorySample

MAX_SAMPLES: Final = 400
"""Above this, every other sample of the older half is dropped."""
MIN_BYTES_PER_STEP: Final = 1024.0
"""Least growth of tensors that is reported, in bytes per step: 1 GB in a million steps."""
MIN_BYTES: Final = 1 << 20
"""Less growth per step is reported too if it has reached this much: it came every few steps."""
MIN_NODES_PER_STEP: Final = 0.5
"""Least growth of graphs that is reported, in nodes per step: a graph that every step extends gains
at least one."""
MIN_NODES: Final = 500
"""Less growth per step is reported too if it has reached this many nodes, some 400 KB."""
MIN_COVERED: Final = 2 / 3
"""Least share of the steps that figures must cover: what they show may have ended since."""
_MIN_PER_TRACED: Final = 3
"""Steps in a row without tracing that must show more than half of the growth, for each traced step.
Where something is cleared once in these steps, at most half remains; where it is not, it is hardly
ever cleared in the traced ones alone."""
_LEFT_PER_TRACING_BYTE: Final = 5
"""Upper bound of what tracing leaves behind: 224 bytes for a traceback of 16 frames, whose entry in
the table took 48."""
_MIN_PER_LEFT: Final = 3
"""Growth that is so many times what tracing leaves behind does not come from it."""
_BYTES_PER_TENSOR: Final = 2500
"""Upper bound of the host memory of a tensor beside its storage, with its entry in a container."""
BYTES_PER_NODE: Final = 700
"""Upper bound of the host memory of a graph node: 580 bytes for an addition with torch 2.13."""
_MIN_LATER_PACE: Final = 0.5
"""Least growth of the heap per step, as a share of the one before, that goes on."""
_NOTHING: Final = Amount(0, 0, 0, 0)


DeviceDtype = tuple[str, str]
"""Device and dtype, which tensor kinds of all sizes share."""


class Lack(Flag):
    """What a sample could not count."""

    NODES = auto()
    """There are more nodes of graphs than a walk may visit."""
    TENSORS = auto()
    """There are more tensors than can be tracked."""
    PROMOTED = auto()
    """Collections have promoted tensors unseen, so that some may be missing."""


class Sample(NamedTuple):
    """One sample. Hundreds of these are stored and count as memory of the program, so it is small.

    Attributes:
        step: The step that has ended.
        ts_ns: Nanoseconds since monitoring began.
        n_nodes: Nodes of all graphs, or None if not measured.
        graph_bytes: Bytes saved by them beyond live tensors, or None.
        resident: Resident memory, or None.
        heap: What C's and Python's allocators have allocated, or None.
        allocated_bytes: Allocated bytes of the device allocators.
        reserved_bytes: Their reserved bytes.
        worker_bytes: Private memory of one DataLoader worker, or None if not measured.
        own_ns: Nanoseconds until then that are no step's: those that profkit has taken, and those
            for which the main thread had no core.
        lacks: What could not be counted.
    """

    step: int
    ts_ns: int
    amounts: dict[TensorKind, Amount]
    n_nodes: int | None = None
    graph_bytes: int | None = None
    resident: Resident | None = None
    heap: Allocated | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    worker_bytes: int | None = None
    own_ns: int = 0
    lacks: Lack = Lack(0)

    def to_model(self) -> MemorySample:
        """Return the sample as it is written to a file."""
        by_device: dict[str, int] = {}
        for kind, amount in self.amounts.items():
            by_device[kind.device] = by_device.get(kind.device, 0) + amount.bytes

        return MemorySample(
            step=self.step,
            ts_ns=self.ts_ns,
            host_rss_bytes=None if self.resident is None else self.resident.bytes,
            tensor_bytes=by_device,
            graph_bytes=self.graph_bytes,
            heap_bytes=None if self.heap is None else self.heap.bytes,
            heap_free_bytes=None if self.heap is None else self.heap.free_bytes,
            allocated_bytes=self.allocated_bytes,
            reserved_bytes=self.reserved_bytes,
            worker_bytes=self.worker_bytes,
            own_ns=self.own_ns,
        )


class TracedSteps(NamedTuple):
    """Steps in which allocations were traced.

    Attributes:
        first: The step that ended when tracing began.
        last: The step that ended when it stopped.
        tracing_bytes: What the trace itself took then.
    """

    first: int
    last: int
    tracing_bytes: int


@dataclass
class Series:
    """The samples of a run, in order.

    Attributes:
        traced: Periods in which allocations were traced.
    """

    samples: list[Sample] = field(default_factory=list)
    traced: list[TracedSteps] = field(default_factory=list)

    def add(self, sample: Sample) -> None:
        """Append a sample, and drop older ones if there are too many."""
        # Most samples equal the one before, and then share its dict.
        if self.samples and self.samples[-1].amounts == sample.amounts:
            sample = sample._replace(amounts=self.samples[-1].amounts)
        self.samples.append(sample)

        # The newer half stays dense: growth is judged by the latest samples.
        if len(self.samples) > MAX_SAMPLES:
            half = MAX_SAMPLES // 2
            self.samples = self.samples[:half:2] + self.samples[half:]

    def add_earlier(self, earlier: Earlier) -> None:
        """Add to all samples what existed before the first one, but was found only now."""
        first_step = self.samples[0].step if self.samples else 0
        added: dict[tuple[int, bool], dict[TensorKind, Amount]] = {}
        for index, sample in enumerate(self.samples):
            is_aged = sample.step - first_step >= MIN_AGE_STEPS
            key = id(sample.amounts), is_aged

            # Samples with equal amounts go on sharing one dict.
            if key not in added:
                added[key] = _with_earlier(sample.amounts, earlier.amounts, is_aged=is_aged)

            self.samples[index] = sample._replace(
                amounts=added[key],
                n_nodes=_plus(sample.n_nodes, earlier.n_nodes),
                graph_bytes=_plus(sample.graph_bytes, earlier.graph_bytes),
            )

    def lower_heap(self, from_step: int, now: Sample, most_bytes: int) -> None:
        """Take off some samples' heap what was freed since, and was not the program's.

        That is what the heap is smaller now than it would be at its pace until then.

        Args:
            from_step: The first step whose sample had it.
            now: The first sample without it.
            most_bytes: Upper bound of it.
        """
        steps, values = self.heap()
        is_held = steps >= from_step
        steps, values = steps[is_held], values[is_held]
        if now.heap is None or not len(steps):
            return

        pace = max(median_slope(steps, values), 0.0) if len(steps) > 1 else 0.0
        expected = values[-1] + pace * (now.step - int(steps[-1]))
        surplus = min(max(round(expected - now.heap.bytes), 0), most_bytes)
        self.samples = [
            sample._replace(heap=sample.heap._replace(bytes=sample.heap.bytes - surplus))
            if sample.heap is not None and sample.step >= from_step
            else sample
            for sample in self.samples
        ]

    def kinds(self) -> set[TensorKind]:
        """Return the tensor kinds of the last sample."""
        return set(self.samples[-1].amounts) if self.samples else set()

    def of(self, kind: TensorKind, value: Callable[[Amount], int]) -> tuple[Int64s, Floats]:
        """Return steps, and a value of one kind at each."""
        counted = self._find_counted()
        return _steps(counted), _values(counted, kind, value)

    def latest_of(self, kind: TensorKind) -> list[Amount]:
        """Return the amounts of one kind at the samples that tell whether it rises."""
        latest = self._find_counted()[-RISING_SAMPLES:]
        return [sample.amounts.get(kind, _NOTHING) for sample in latest]

    def bytes_of(
        self, device_dtype: DeviceDtype, without: Container[TensorKind]
    ) -> tuple[Int64s, Floats]:
        """Return steps, and bytes of all kinds of a device and dtype, without some, at each."""
        counted = self._find_counted()
        values = [
            sum(
                amount.bytes
                for kind, amount in sample.amounts.items()
                if (kind.device, kind.dtype) == device_dtype and kind not in without
            )
            for sample in counted
        ]
        return _steps(counted), np.array(values, dtype=np.float64)

    def aged_bytes(self, kind: TensorKind) -> tuple[Int64s, Floats]:
        """Return steps, and bytes of one kind allocated up to each that are still alive."""
        every = self.of(kind, lambda amount: amount.bytes)[1]
        return _by_allocation(*self.of(kind, lambda amount: amount.aged_bytes), every)

    def aged_n(self, kind: TensorKind) -> tuple[Int64s, Floats]:
        """Return steps, and storages of one kind allocated up to each that are still alive."""
        every = self.of(kind, lambda amount: amount.n)[1]
        return _by_allocation(*self.of(kind, lambda amount: amount.aged_n), every)

    def nodes(self) -> tuple[Int64s, Floats]:
        """Return steps at which all graphs were walked, and their nodes."""
        walked = filter(_is_walked, self.samples)
        return _columns([(sample.step, sample.n_nodes or 0) for sample in walked])

    def latest_nodes(self) -> Floats:
        """Return the nodes at the samples that tell whether they rise."""
        latest = islice(filter(_is_walked, reversed(self.samples)), RISING_SAMPLES)
        return np.array([sample.n_nodes for sample in latest], dtype=np.float64)[::-1]

    def covers_graphs(self) -> bool:
        """Tell whether graphs were walked, as far as is affordable, up to the last steps."""
        return self._is_late(
            max((s.step for s in self.samples if s.n_nodes is not None), default=0)
        )

    def unexplained_heap(self, block_bytes: float) -> tuple[Int64s, Floats]:
        """Return steps, and heap bytes beyond those of tensors and graphs.

        Args:
            block_bytes: Mean bytes of a block of Python's allocator.
        """
        # What graphs save is measured at fewer samples, and taken to grow evenly between them.
        saved_steps, saved = _columns(
            [(s.step, s.graph_bytes) for s in self.samples if s.graph_bytes is not None]
        )

        unexplained: list[tuple[int, int]] = []
        for sample in self.samples:
            if sample.heap is None or not _is_walked(sample):
                continue
            in_graphs = round(np.interp(sample.step, saved_steps, saved)) if len(saved) else 0
            n_bytes = sample.heap.bytes + round(block_bytes * sample.heap.n_blocks)
            unexplained.append((sample.step, n_bytes - _explained_bytes(sample) - in_graphs))

        is_late = bool(unexplained) and self._is_late(unexplained[-1][0])
        return _columns(unexplained if is_late else [])

    def is_seen_without_tracing(self, host: tuple[Int64s, Floats], trend: Trend) -> bool:
        """Tell whether growth of host memory shows in enough steps without tracing, or is large.

        ``tracemalloc`` never frees its tracebacks. They may equal what the program has freed in the
        traced steps, so that what is cleared now and then seems to grow on.

        Args:
            host: What :meth:`unexplained_heap` returns.
            trend: Its growth.

        Source: ``tracemalloc_tracebacks`` in ``Modules/_tracemalloc.c`` up to Python 3.12: that
            table frees values, of which it has none, and no keys.
        """
        left_bytes = _LEFT_PER_TRACING_BYTE * sum(period.tracing_bytes for period in self.traced)
        if trend.per_step * (trend.last_step - trend.first_step) >= _MIN_PER_LEFT * left_bytes:
            return True

        least = _MIN_PER_TRACED * sum(period.last - period.first for period in self.traced)
        steps, values = host
        ends = np.searchsorted(steps, [period.last for period in self.traced])
        parts = zip(np.split(steps, ends), np.split(values, ends), strict=True)
        return any(
            len(part) > 1
            and part[-1] - part[0] >= least
            and grown[-1] - grown[0] > trend.per_step / 2 * (part[-1] - part[0])
            for part, grown in parts
        )

    def heap(self) -> tuple[Int64s, Floats]:
        """Return steps, and bytes of C's allocator."""
        return _columns([(s.step, s.heap.bytes) for s in self.samples if s.heap is not None])

    def mapped(self, block_bytes: float) -> tuple[Int64s, Floats]:
        """Return steps, and resident bytes beside C's heap and the blocks of Python's allocator.

        Args:
            block_bytes: Taken for the bytes of a block.
        """
        rows: list[tuple[int, int]] = []
        for sample in self.samples:
            if sample.resident is None or sample.heap is None:
                continue
            in_heap = sample.heap.bytes + sample.heap.free_bytes
            in_blocks = round(block_bytes * sample.heap.n_blocks)
            rows.append((sample.step, sample.resident.own_bytes - in_heap - in_blocks))

        return _columns(rows)

    def heap_rises(self, min_per_step: float) -> bool:
        """Tell whether the heap has grown so much per step at the latest samples."""
        latest = islice((s for s in reversed(self.samples) if s.heap), RISING_SAMPLES)
        steps, values = _columns([(s.step, s.heap.bytes) for s in latest if s.heap])
        if not is_rising(values[::-1]):
            return False
        return bool(values[0] - values[-1] >= min_per_step * (steps[0] - steps[-1]))

    def _is_late(self, step: int) -> bool:
        return bool(self.samples) and step >= MIN_COVERED * self.samples[-1].step

    def extent_after(self, first_step: int) -> float:
        """Return how much longer tensors have grown than they were counted; 1 if not longer.

        Args:
            first_step: The step from which they grow.
        """
        counted, last = self._find_counted(), self.samples[-1].step
        n_counted = counted[-1].step - first_step if counted else 0
        if n_counted <= 0 or not self._heap_goes_on(counted[-1].step):
            return 1.0
        return (last - first_step) / n_counted

    def _find_counted(self) -> list[Sample]:
        """Find the samples with all tensors, by which their growth is judged.

        Above the limit of what is tracked the numbers stay flat while tensors are added. Those of
        collections that were missed come to light at a later sample; if most samples have missed
        some, their numbers are the best that there is.
        """
        samples = self.samples
        if samples and Lack.TENSORS in samples[-1].lacks:
            samples = list(takewhile(lambda sample: Lack.TENSORS not in sample.lacks, samples))

        complete = [sample for sample in samples if Lack.PROMOTED not in sample.lacks]
        if len(complete) < MIN_POINTS or len(complete) == len(samples):
            return samples
        last_step = complete[-1].step
        is_late = last_step >= MIN_COVERED * samples[-1].step
        return complete if is_late or self._heap_goes_on(last_step) else samples

    def _heap_goes_on(self, step: int) -> bool:
        """Tell whether the heap grows on after a step, about as fast as until then."""
        steps, values = self.heap()
        split = int(np.searchsorted(steps, step))
        if not 0 < split < len(steps) - 1:
            return False
        before = (values[split] - values[0]) / (steps[split] - steps[0])
        after = (values[-1] - values[split]) / (steps[-1] - steps[split])
        return bool(before > 0 and after >= _MIN_LATER_PACE * before)


def _steps(samples: list[Sample]) -> Int64s:
    return np.array([sample.step for sample in samples], dtype=np.int64)


def _plus(measured: int | None, n: int) -> int | None:
    """Add to a figure, which stays None if it was not measured."""
    return None if measured is None else measured + n


def _with_earlier(
    amounts: dict[TensorKind, Amount], earlier: dict[TensorKind, Amount], *, is_aged: bool
) -> dict[TensorKind, Amount]:
    total = dict(amounts)
    for kind, more in earlier.items():
        aged = more if is_aged else _NOTHING
        later = total.get(kind, _NOTHING)
        total[kind] = Amount(
            later.aged_bytes + aged.aged_bytes,
            later.aged_n + aged.aged_n,
            later.bytes + more.bytes,
            later.n + more.n,
        )
    return total


def _values(samples: list[Sample], kind: TensorKind, value: Callable[[Amount], int]) -> Floats:
    return np.array([value(sample.amounts.get(kind, _NOTHING)) for sample in samples], np.float64)


def _is_walked(sample: Sample) -> bool:
    return sample.n_nodes is not None and Lack.NODES not in sample.lacks


def _by_allocation(steps: Int64s, aged: Floats, every: Floats) -> tuple[Int64s, Floats]:
    """Return values of aged storages by the step up to which they were allocated, one per step.

    What a sample counts as aged was there at an earlier one and allocated before that, which is
    long before if samples are far apart. The last sample then says more: what there is of all
    ages, without the least that was young at any sample, was allocated up to that sample.
    """
    before = np.searchsorted(steps, steps - MIN_AGE_STEPS, side="right") - 1
    allocated = np.where(before >= 0, steps[before], steps - MIN_AGE_STEPS)

    # Of several samples with the same step of allocation, the last one shows what still lives.
    is_last = np.append(allocated[1:] != allocated[:-1], [True] * bool(len(allocated)))
    allocated, values = allocated[is_last], aged[is_last]

    if len(steps) and allocated[-1] < steps[-1] - MIN_AGE_STEPS:
        allocated = np.append(allocated, steps[-1] - MIN_AGE_STEPS)
        values = np.append(values, every[-1] - (every - aged).min())
    return allocated, values


def _explained_bytes(sample: Sample) -> int:
    """Return host memory that tensors and graph nodes account for, without what these save."""
    on_host = [amount for kind, amount in sample.amounts.items() if kind.device == "cpu"]
    n = sum(amount.n for amount in sample.amounts.values())
    n_bytes = sum(amount.bytes for amount in on_host)
    return n_bytes + n * _BYTES_PER_TENSOR + (sample.n_nodes or 0) * BYTES_PER_NODE


def _columns(pairs: list[tuple[int, int]]) -> tuple[Int64s, Floats]:
    """Return pairs of a step and a value as two columns."""
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return table[:, 0].astype(np.int64), table[:, 1]


def growth_of(
    series: tuple[Int64s, Floats], min_per_step: float, min_total: float = math.inf
) -> Trend | None:
    """Return the lasting growth of a series of steps and values, or None.

    Args:
        min_per_step: Least growth per step.
        min_total: Growth over all its steps that suffices instead.
    """
    steps, values = series
    # Most series end where they began and need no closer evaluation.
    if len(steps) < 2 or values[-1] - values.min() < min(min_per_step, min_total):  # noqa: PLR2004
        return None

    trend = lasting_growth(steps, values)
    if trend is None:
        return None

    total = trend.per_step * (trend.last_step - trend.first_step)
    return trend if trend.per_step >= min_per_step or total >= min_total else None


def graph_growth(series: Series) -> Trend | None:
    """Return the lasting growth of graphs in nodes, if it is known for the last steps too."""
    trend = growth_of(series.nodes(), MIN_NODES_PER_STEP, MIN_NODES)
    return trend if trend is not None and series.covers_graphs() else None


def suspected_kinds(series: Series) -> set[TensorKind]:
    """Return kinds of which more and more has stayed alive at the latest samples."""
    return {kind for kind in series.kinds() if _is_suspected(series, kind)}


def accumulation(series: Series, kind: TensorKind) -> Trend | None:
    """Return growth of the bytes of a kind of which more and more tensors stay alive.

    If only their bytes grow, each is larger than the one that it replaces.
    """
    trend = growth_of(series.aged_bytes(kind), MIN_BYTES_PER_STEP, MIN_BYTES)
    return trend if trend is not None and growth_of(series.aged_n(kind), 0.0) is not None else None


def growth_interval(series: Series, kind: TensorKind) -> int:
    """Return steps between increases of the number of a kind's tensors, as samples show."""
    steps, n = series.aged_n(kind)
    rises = np.diff(steps[1:][np.diff(n) > 0])
    return int(median(rises)) if len(rises) else 0


def growing_kinds(series: Series) -> set[TensorKind]:
    """Return kinds of which more and more has stayed alive over all samples, even if rarely."""
    return {kind for kind in series.kinds() if accumulation(series, kind) is not None}


def find_reallocated(series: Series, accumulating: set[TensorKind]) -> dict[DeviceDtype, Trend]:
    """Find devices and dtypes whose total grows beyond that of growing numbers of tensors.

    Tensors are then reallocated, larger each time: to keep more, or for larger and larger batches.

    Args:
        accumulating: The result of :func:`growing_kinds`.
    """
    trends = {}
    for device_dtype in {(kind.device, kind.dtype) for kind in series.kinds()}:
        remainder = series.bytes_of(device_dtype, accumulating)
        trend = growth_of(remainder, MIN_BYTES_PER_STEP, MIN_BYTES)
        if trend is not None:
            trends[device_dtype] = trend
    return trends


def _is_suspected(series: Series, kind: TensorKind) -> bool:
    """Tell whether more and more of a kind has stayed alive at the latest samples."""
    latest = series.latest_of(kind)

    # Most kinds do not grow, and need no closer evaluation.
    more_bytes = latest[-1].aged_bytes - latest[0].aged_bytes
    if more_bytes >= MIN_BYTES_PER_STEP and is_rising(
        np.array([amount.aged_bytes for amount in latest], np.float64)
    ):
        return True
    return (
        kind.has_graph
        and latest[-1].aged_n > latest[0].aged_n
        and is_rising(np.array([amount.aged_n for amount in latest], np.float64))
    )
