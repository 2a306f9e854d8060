"""All figures of one step boundary: tensors, graphs, allocators, the process and its workers."""

import contextlib
from collections.abc import Iterator
from typing import Final

from profkit.capture.malloc_stats import Heap
from profkit.capture.memory.holders import autograd_graphs
from profkit.capture.memory.holders.unreachable import quiet_collector
from profkit.capture.memory.monitor import process_metrics
from profkit.capture.memory.monitor.budget import Clock, Work
from profkit.capture.memory.monitor.live_tensors import LiveTensors
from profkit.capture.memory.monitor.loader_workers import Workers
from profkit.capture.memory.monitor.series import Seen
from profkit.capture.memory.monitor.tracemalloc_lines import TracemallocLines

_MOST_NODES: Final = 20_000
"""Nodes of all graphs that are walked at a look, some 60 ms: with more, enough has been seen."""
_BYTES_APART: Final = 8
"""Looks at which it is asked what graphs keep, which takes five times as long."""


class Sampler:
    """Takes the figures of step boundaries, as far as each is within the budget.

    Args:
        clock: Says what is within the budget.
        census: Follows the tensors.
        lines: Notes lines, which takes memory of its own.

    Attributes:
        workers: Follows the loader's workers.
    """

    def __init__(self, clock: Clock, census: LiveTensors, lines: TracemallocLines) -> None:
        self._clock = clock
        self._census = census
        self._lines = lines
        self._heap = Heap()
        self.workers = Workers(self._heap)
        self._resident = process_metrics.ResidentMemory()
        self._own_bytes = 0

    def take(self, step: int, n_samples: int, work: Work, *, is_alone: bool) -> Seen:
        """The figures now.

        Args:
            step: The step that has ended.
            n_samples: How many looks there have been.
            work: What kind of look it is.
            is_alone: Whether no recording is going on, which takes memory of its own.
        """
        with self._clock.spending(work):
            amounts = self._census.look(step, full=work != "look")
        n_nodes, graph_bytes = self._graphs(with_bytes=n_samples % _BYTES_APART == 0)
        return Seen(
            step,
            self._clock.monitored_ns(),
            amounts,
            n_nodes,
            graph_bytes,
            self._resident.read() if is_alone else None,
            self._heap_bytes() if is_alone else None,
            *process_metrics.device_bytes(),
            worker_bytes=self._worker_bytes(step, is_alone=is_alone),
        )

    @contextlib.contextmanager
    def ours(self) -> Iterator[None]:
        """What is given out while this is open, and stays, does not count as the program's."""
        before = self._heap.allocated_bytes()
        try:
            yield
        finally:
            after = self._heap.allocated_bytes()
            if before is not None and after is not None:
                self._own_bytes = max(0, self._own_bytes + after - before)

    def close(self) -> None:
        """Close what is open."""
        self._resident.close()

    def _heap_bytes(self) -> int | None:
        given = self._heap.allocated_bytes()
        return None if given is None else given - self._lines.own_bytes() - self._own_bytes

    def _worker_bytes(self, step: int, *, is_alone: bool) -> int | None:
        """Private bytes of one of the loader's workers; None where it was not read."""
        if not is_alone:
            self.workers.recorded()
        due_ns = self.workers.due_ns(step)
        if due_ns is None or not self._clock.affords("workers", due_ns):
            return None
        with self._clock.spending("workers"):
            return self.workers.read(step)

    def _graphs(self, *, with_bytes: bool) -> tuple[int | None, int | None]:
        """Nodes of all graphs and what they keep beyond live tensors; None where it is too dear."""
        if not self._clock.affords("graphs"):
            return None, None
        with self._clock.spending("graphs"), quiet_collector(), autograd_graphs.past_user_code():
            roots = self._census.roots()
            nodes = [node for one in roots if (node := autograd_graphs.grad_fn_of(one)) is not None]
            walk = autograd_graphs.Walk(_MOST_NODES)
            n_bytes = None
            if with_bytes:
                counted = {address for address, _ in self._census.entries()}
                n_bytes = sum(walk.bytes_kept_by(node, counted) for node in walk.nodes(nodes))
            else:
                for _ in walk.nodes(nodes):
                    pass
            return (walk.n_nodes, n_bytes) if walk.is_exact else (None, None)
