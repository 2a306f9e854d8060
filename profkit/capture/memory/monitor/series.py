"""The samples of a run, in bounded memory, and the growth that they show."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from profkit.capture.memory.monitor.live_tensors import MIN_AGE_STEPS, Amount, TensorKind
from profkit.index.trend import Floats, Trend, is_rising, lasting_growth
from profkit.model.events import Int64s
from profkit.model.live_memory import MemorySample

MAX_SAMPLES: Final = 400
"""Above this, every other sample of the older half is dropped."""
MIN_BYTES_PER_STEP: Final = 1024.0
"""Least growth of tensors that is reported, in bytes per step: 1 GB in a million steps."""
MIN_NODES_PER_STEP: Final = 0.5
"""Least growth of graphs that is reported, in nodes per step: a graph that every step extends gains
at least one."""
_BYTES_PER_TENSOR: Final = 2500
"""Upper bound of the host memory of a tensor beside its storage, with its entry in a container."""
_BYTES_PER_NODE: Final = 700
"""Upper bound of the host memory of a graph node: 580 bytes for an addition with torch 2.13."""
_NOTHING: Final = Amount(0, 0, 0, 0)


DeviceDtype = tuple[str, str]
"""Device and dtype, which tensor kinds of all sizes share."""


class Sample(NamedTuple):
    """One sample. Hundreds of these are stored and count as memory of the program, so it is small.

    Attributes:
        step: The step that has ended.
        ts_ns: Nanoseconds since monitoring began.
        n_nodes: Nodes of all graphs, or None if not measured.
        graph_bytes: Bytes saved by them beyond live tensors, or None.
        rss_bytes: Resident memory.
        heap_bytes: Bytes allocated by C's and Python's allocators, or None.
        allocated_bytes: Allocated bytes of the device allocators.
        reserved_bytes: Their reserved bytes.
        worker_bytes: Private memory of one DataLoader worker, or None if not measured.
    """

    step: int
    ts_ns: int
    amounts: dict[TensorKind, Amount]
    n_nodes: int | None = None
    graph_bytes: int | None = None
    rss_bytes: int | None = None
    heap_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    worker_bytes: int | None = None

    def to_model(self) -> MemorySample:
        """The sample as it is written to a file."""
        by_device: dict[str, int] = {}
        for kind, amount in self.amounts.items():
            by_device[kind.device] = by_device.get(kind.device, 0) + amount.bytes
        return MemorySample(
            step=self.step,
            ts_ns=self.ts_ns,
            host_rss_bytes=self.rss_bytes,
            tensor_bytes=by_device,
            graph_bytes=self.graph_bytes,
            allocated_bytes=self.allocated_bytes,
            reserved_bytes=self.reserved_bytes,
            worker_bytes=self.worker_bytes,
        )


@dataclass
class Series:
    """The samples of a run, in order."""

    samples: list[Sample] = field(default_factory=list)

    def add(self, sample: Sample) -> None:
        """Append a sample, and drop older ones if there are too many."""
        if self.samples and self.samples[-1].amounts == sample.amounts:
            sample = sample._replace(amounts=self.samples[-1].amounts)
        self.samples.append(sample)
        if len(self.samples) > MAX_SAMPLES:
            half = MAX_SAMPLES // 2
            self.samples = self.samples[:half:2] + self.samples[half:]

    def kinds(self) -> set[TensorKind]:
        """The tensor kinds of the last sample."""
        return set(self.samples[-1].amounts) if self.samples else set()

    def of(self, kind: TensorKind, value: Callable[[Amount], int]) -> tuple[Int64s, Floats]:
        """Steps, and a value of one kind at each."""
        values = [value(one.amounts.get(kind, _NOTHING)) for one in self.samples]
        return self._steps(), np.array(values, dtype=np.float64)

    def of_device_dtype(
        self, device_dtype: DeviceDtype, value: Callable[[Amount], int]
    ) -> tuple[Int64s, Floats]:
        """Steps, and a value summed over all kinds of a device and dtype at each."""
        values = [
            sum(value(a) for k, a in one.amounts.items() if (k.device, k.dtype) == device_dtype)
            for one in self.samples
        ]
        return self._steps(), np.array(values, dtype=np.float64)

    def by_allocation(self, series: tuple[Int64s, Floats]) -> tuple[Int64s, Floats]:
        """Values of aged storages by the step up to which they were allocated, one per step.

        What a sample counts as aged was there at an earlier one and allocated before that, which
        is long before if samples are far apart.
        """
        steps, values = series
        before = np.searchsorted(steps, steps - MIN_AGE_STEPS, side="right") - 1
        allocated = np.where(before >= 0, steps[before], steps - MIN_AGE_STEPS)
        is_last = np.append(allocated[1:] != allocated[:-1], [True] * bool(len(allocated)))
        return allocated[is_last], values[is_last]

    def aged_bytes(self, kind: TensorKind) -> tuple[Int64s, Floats]:
        """Steps, and bytes of one kind that were allocated up to each and are still alive."""
        return self.by_allocation(self.of(kind, lambda amount: amount.aged_bytes))

    def nodes(self) -> tuple[Int64s, Floats]:
        """Steps at which graphs were walked, and their nodes."""
        known = [(one.step, one.n_nodes) for one in self.samples if one.n_nodes is not None]
        return _columns(known)

    def host(self) -> tuple[Int64s, Floats]:
        """Steps, and heap bytes beyond those of tensors and graphs."""
        known = [
            (one.step, one.heap_bytes - _explained_bytes(one))
            for one in self.samples
            if one.heap_bytes is not None and one.n_nodes is not None
        ]
        return _columns(known)

    def _steps(self) -> Int64s:
        return np.array([one.step for one in self.samples], dtype=np.int64)


def _explained_bytes(sample: Sample) -> int:
    """Host memory that tensors and graphs account for."""
    on_host = [amount for kind, amount in sample.amounts.items() if kind.device == "cpu"]
    n = sum(amount.n for amount in sample.amounts.values())
    n_bytes = sum(amount.bytes for amount in on_host) + (sample.graph_bytes or 0)
    return n_bytes + n * _BYTES_PER_TENSOR + (sample.n_nodes or 0) * _BYTES_PER_NODE


def _columns(known: list[tuple[int, int]]) -> tuple[Int64s, Floats]:
    table = np.array(known, dtype=np.float64).reshape(-1, 2)
    return table[:, 0].astype(np.int64), table[:, 1]


def growth_of(series: tuple[Int64s, Floats], min_per_step: float) -> Trend | None:
    """The lasting growth of a series of steps and values, if it is at least this much per step."""
    steps, values = series
    # Most series end where they began and need no closer evaluation.
    if len(steps) < 2 or values[-1] - values.min() < min_per_step:  # noqa: PLR2004
        return None
    trend = lasting_growth(steps, values)
    return trend if trend is not None and trend.per_step >= min_per_step else None


def suspected_kinds(series: Series) -> set[TensorKind]:
    """Kinds of which more and more has stayed alive at the latest samples."""
    return {kind for kind in series.kinds() if _is_suspected(series, kind)}


def growing_kinds(series: Series) -> set[TensorKind]:
    """Kinds of which more and more has stayed alive over all samples, even if only occasionally."""
    return {
        kind
        for kind in series.kinds()
        if growth_of(series.aged_bytes(kind), MIN_BYTES_PER_STEP) is not None
    }


def reallocated(series: Series) -> dict[DeviceDtype, Trend]:
    """Devices and dtypes whose total grows while what stays alive does not.

    One tensor is then reallocated again and again, larger each time.
    """
    found = {}
    for device_dtype in {(kind.device, kind.dtype) for kind in series.kinds()}:
        total = series.of_device_dtype(device_dtype, lambda amount: amount.bytes)
        trend = growth_of(total, MIN_BYTES_PER_STEP)
        aged = series.of_device_dtype(device_dtype, lambda amount: amount.aged_bytes)
        if trend is not None and growth_of(series.by_allocation(aged), MIN_BYTES_PER_STEP) is None:
            found[device_dtype] = trend
    return found


def _is_suspected(series: Series, kind: TensorKind) -> bool:
    _, n_bytes = series.of(kind, lambda amount: amount.aged_bytes)
    if is_rising(n_bytes) and n_bytes[-1] - n_bytes[-4] >= MIN_BYTES_PER_STEP:
        return True
    return kind.has_graph and is_rising(series.of(kind, lambda amount: amount.aged_n)[1])
