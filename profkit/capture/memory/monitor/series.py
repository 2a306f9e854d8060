"""What the looks of a run have seen, step by step, in a size that does not grow with the run."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from profkit.capture.memory.monitor.live_tensors import AGE, Amount, TensorKind
from profkit.index.trend import Floats, Trend, is_rising, lasting_growth
from profkit.model.events import Int64s
from profkit.model.live_memory import MemorySample

MOST_LOOKS: Final = 400
"""Beyond this many, every other one is dropped."""
LEAST_PER_STEP: Final = 1024.0
"""Bytes a step below which tensors are not said to grow: a gigabyte takes a million steps."""
LEAST_NODES_PER_STEP: Final = 0.5
"""Graph nodes a step, likewise: less than one in two steps is no graph that is kept each step."""
_BYTES_A_TENSOR: Final = 2500
"""What a tensor takes beside its storage, with the entry of a container that holds it: at most."""
_BYTES_A_NODE: Final = 700
"""What a node of a graph takes, at most: 580 bytes for an addition with torch 2.13."""
_NOTHING: Final = Amount(0, 0, 0, 0)


Sort = tuple[str, str]
"""Device and dtype: kinds of all sizes."""


class Seen(NamedTuple):
    """One look, kept small: hundreds of these are held, and count as memory of the program.

    Attributes:
        step: The step that had ended.
        ts_ns: Nanoseconds since watching began.
        amounts: How much there is of each kind of tensors.
        n_nodes: Nodes of all graphs, or None where they were not walked.
        graph_bytes: What they keep beyond live tensors, likewise.
        rss_bytes: Resident memory.
        heap_bytes: What C's allocator and Python's have given out, or None where they do not tell.
        allocated_bytes: What the devices' allocators have given out.
        reserved_bytes: What those have reserved.
        worker_bytes: What one of the loader's workers has to itself, where that was read.
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

    def figures(self) -> MemorySample:
        """As it is reported."""
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
    """All looks that are kept.

    Attributes:
        seen: The looks, in their order.
    """

    seen: list[Seen] = field(default_factory=list)

    def add(self, seen: Seen) -> None:
        """Keep one more look; of too many, every other one of the older half."""
        if self.seen and self.seen[-1].amounts == seen.amounts:
            seen = seen._replace(amounts=self.seen[-1].amounts)
        self.seen.append(seen)
        if len(self.seen) > MOST_LOOKS:
            half = MOST_LOOKS // 2
            self.seen = self.seen[:half:2] + self.seen[half:]

    def kinds(self) -> set[TensorKind]:
        """The kinds that were there at the last look."""
        return set(self.seen[-1].amounts) if self.seen else set()

    def of(self, kind: TensorKind, what: Callable[[Amount], int]) -> tuple[Int64s, Floats]:
        """Steps, and one figure of a kind at each.

        Args:
            what: Picks the figure.
        """
        values = [what(one.amounts.get(kind, _NOTHING)) for one in self.seen]
        return self._steps(), np.array(values, dtype=np.float64)

    def aged(self, kind: TensorKind, what: Callable[[Amount], int]) -> tuple[Int64s, Floats]:
        """Steps, and one figure of what was made up to each and has stayed.

        What a look counts as aged was there at an earlier one, and made before that: with looks
        far apart, long before.

        Args:
            what: Picks the figure.
        """
        return self._made_until(self.of(kind, what)[1])

    def aged_of_sort(self, sort: Sort, what: Callable[[Amount], int]) -> tuple[Int64s, Floats]:
        """The same of all kinds of a sort.

        Args:
            what: Picks the figure.
        """
        return self._made_until(self.of_sort(sort, what)[1])

    def of_sort(self, sort: Sort, what: Callable[[Amount], int]) -> tuple[Int64s, Floats]:
        """Steps, and one figure of all kinds of a sort at each.

        Args:
            what: Picks the figure.
        """
        values = [
            sum(what(a) for k, a in one.amounts.items() if (k.device, k.dtype) == sort)
            for one in self.seen
        ]
        return self._steps(), np.array(values, dtype=np.float64)

    def nodes(self) -> tuple[Int64s, Floats]:
        """Steps at which graphs were walked, and their nodes."""
        known = [(one.step, one.n_nodes) for one in self.seen if one.n_nodes is not None]
        return _columns(known)

    def host(self) -> tuple[Int64s, Floats]:
        """Steps, and what is given out beyond tensors and graphs, with what they take besides."""
        known = [
            (one.step, one.heap_bytes - _explained(one))
            for one in self.seen
            if one.heap_bytes is not None and one.n_nodes is not None
        ]
        return _columns(known)

    def _made_until(self, values: Floats) -> tuple[Int64s, Floats]:
        """Values by the step up to which what they count was made; the last of several."""
        steps = self._steps()
        before = np.searchsorted(steps, steps - AGE, side="right") - 1
        made = np.where(before >= 0, steps[before], steps - AGE)
        is_last = np.append(made[1:] != made[:-1], [True] * bool(len(made)))
        return made[is_last], values[is_last]

    def _steps(self) -> Int64s:
        return np.array([one.step for one in self.seen], dtype=np.int64)


def _explained(seen: Seen) -> int:
    """Host memory that tensors and graphs account for."""
    on_host = [amount for kind, amount in seen.amounts.items() if kind.device == "cpu"]
    n = sum(amount.n for amount in seen.amounts.values())
    n_bytes = sum(amount.bytes for amount in on_host) + (seen.graph_bytes or 0)
    return n_bytes + n * _BYTES_A_TENSOR + (seen.n_nodes or 0) * _BYTES_A_NODE


def _columns(known: list[tuple[int, int]]) -> tuple[Int64s, Floats]:
    table = np.array(known, dtype=np.float64).reshape(-1, 2)
    return table[:, 0].astype(np.int64), table[:, 1]


def growth_of(series: tuple[Int64s, Floats], least: float) -> Trend | None:
    """The lasting growth of a figure, if it is at least so much a step.

    Args:
        series: Steps and values.
        least: The least that counts.
    """
    steps, values = series
    # Most series end where they began; those need no closer judgement.
    if len(steps) < 2 or values[-1] - values.min() < least:  # noqa: PLR2004
        return None
    trend = lasting_growth(steps, values)
    return trend if trend is not None and trend.per_step >= least else None


def suspects(series: Series) -> set[TensorKind]:
    """Kinds of which more and more has stayed at the last looks."""
    return {kind for kind in series.kinds() if _is_suspect(series, kind)}


def grown(series: Series) -> set[TensorKind]:
    """Kinds of which more and more has stayed over all looks, be it only now and then."""
    return {
        kind
        for kind in series.kinds()
        if growth_of(series.aged(kind, lambda amount: amount.aged_bytes), LEAST_PER_STEP)
        is not None
    }


def made_anew(series: Series) -> dict[Sort, Trend]:
    """Sorts of which the whole grows, and not what stays: one is made anew, larger each time."""
    found = {}
    for sort in {(kind.device, kind.dtype) for kind in series.kinds()}:
        trend = growth_of(series.of_sort(sort, lambda amount: amount.bytes), LEAST_PER_STEP)
        aged = series.aged_of_sort(sort, lambda amount: amount.aged_bytes)
        if trend is not None and growth_of(aged, LEAST_PER_STEP) is None:
            found[sort] = trend
    return found


def _is_suspect(series: Series, kind: TensorKind) -> bool:
    _, n_bytes = series.of(kind, lambda amount: amount.aged_bytes)
    if is_rising(n_bytes) and n_bytes[-1] - n_bytes[-4] >= LEAST_PER_STEP:
        return True
    return kind.has_graph and is_rising(series.of(kind, lambda amount: amount.aged_n)[1])
