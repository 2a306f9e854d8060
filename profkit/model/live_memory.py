"""The memory of a monitored program over its steps, and its leaks.

Plain data that survives a round trip through JSON: capture writes it, analysis reads it. Files end
in ``.memory.json.gz``. Sizes are bytes; None is a value that is not known.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, field, fields
from typing import TYPE_CHECKING, Final, Literal

from profkit.dataclass import dataclass
from profkit.model.growth import Growth
from profkit.model.location import Frame

if TYPE_CHECKING:
    import pandas as pd

SCHEMA: Final = "profkit.memory/2"

CYCLE: Final = "itertools.cycle"
"""In the parts of a chain, an iterator that saves all items of its first pass."""
FINALIZER: Final = "weakref.finalize"
"""At the start of a chain's name, a finalizer, which keeps its arguments."""
NUMBERED: Final = "*"
"""At the end of a chain's name, attributes that differ in a number, such as ``model.hist_1``."""
TEE: Final = "_tee_dataobject"
"""In the parts of a chain, the items that not all iterators of ``itertools.tee`` have passed."""

LeakKind = Literal["tensors", "graph", "garbage", "host", "native", "workers"]
"""What leaks: live tensors; the autograd graph behind a tensor; unreachable reference cycles, of
Python or of autograd; host memory that no tensor owns; host memory that no Python object owns; the
memory of DataLoader workers."""

HolderKind = Literal[
    "module-global", "class", "instance", "closure", "cache", "traceback", "frame", "hook",
    "thread", "queue", "executor", "generator", "context", "optimizer", "unknown",
]  # fmt: skip
"""The root of a reference chain, or a more specific holder along it. ``cache``: functools' caches;
``traceback``: the frames of a stored exception; ``frame``: locals of a running function; ``hook``:
a module's or tensor's hooks; ``thread``: also ``threading.local`` and context variables;
``context``: an autograd function's ``ctx``."""


@dataclass(frozen=True)
class Chain:
    """A reference chain, from a root to the object that it keeps alive.

    Attributes:
        parts: Such as ``("__main__.history", "[17]")`` or ``("Net.seen", "['3']")``. Joined, they
            read as an expression where that is possible.
        container: Type of the container on the chain that most likely grows, such as ``list``;
            empty if there is none.
        container_len: Number of its entries when it was inspected, or None.
        name: The user's name of what grows: ``history``.
        scope: The scope of that name, such as `` in main at train.py:3``; empty for a global.
        is_entry: Whether the object is an entry of a container, not the value of a name.
        is_library: Whether the root belongs to a library rather than to the program.
        container_limit: Most entries of that container, such as a deque's ``maxlen``, or None.
        emptied_by: The method of the owning object that empties it, such as ``reset``, or empty.
        is_by_sample: Whether a data set has at most one entry in it for each sample.
    """

    kind: HolderKind
    parts: tuple[str, ...]
    container: str = ""
    container_len: int | None = None
    name: str = ""
    scope: str = ""
    is_entry: bool = False
    is_library: bool = False
    container_limit: int | None = None
    emptied_by: str = ""
    is_by_sample: bool = False


@dataclass(frozen=True)
class Graph:
    """The autograd graph behind some tensors.

    Attributes:
        n_nodes: Nodes reachable from their ``grad_fn``.
        saved_bytes: Bytes of the storages saved for backward, each storage once.
        root: Type of a typical ``grad_fn``, such as ``AddBackward0``.
        is_exact: False if the walk stopped at its limit.
        number: The same for graphs that have most of their nodes in common; 0 if it is unknown.
        n_tensors: Number of these tensors; 0 if it is unknown.
    """

    n_nodes: int
    saved_bytes: int
    root: str
    is_exact: bool = True
    number: int = 0
    n_tensors: int = 0


@dataclass(frozen=True)
class TensorShape:
    """Shape and dtype of a tensor; as text ``(120, 3) float32``, or the dtype alone.

    Attributes:
        dtype: Such as ``float32``.
        dims: Lengths of the dimensions; None for a subclass, which may compute its shape.
        element_bytes: Bytes of one element.
    """

    dtype: str
    dims: tuple[int, ...] | None
    element_bytes: int

    def __str__(self) -> str:
        """Return text such as ``(120, 3) float32``."""
        return self.dtype if self.dims is None else f"{self.dims} {self.dtype}"

    @property
    def n_bytes(self) -> int | None:
        """Return the bytes of all elements, which may be fewer than the storage's."""
        return None if self.dims is None else math.prod(self.dims) * self.element_bytes

    @property
    def is_scalar(self) -> bool:
        """Return whether it is known to have one element in at most one dimension."""
        return self.dims in {(), (1,)}


@dataclass(frozen=True)
class Leak:
    """Memory that grows with every step, allocated at one source line or kept by one holder.

    Attributes:
        device: ``cpu``, ``cuda:0``, ``pinned``; ``host`` for memory that no tensor owns;
            ``workers`` for DataLoader workers.
        per_step_bytes: Growth per step, including what the graph behind the tensors saved, but
            not the graph's nodes themselves.
        bytes: Leaked bytes at the last sample, with the same inclusions.
        n: Number of objects, or of workers.
        type: Python type, such as ``torch.Tensor``, ``numpy.ndarray``, ``dict``.
        stack: Allocation site, innermost user frame first; empty if not known.
        stack_basis: ``seen`` if the allocation itself was recorded, ``node`` if it is the line
            that created the autograd node, else ``unknown``.
        code: Source text of the first frame's line, without indent; empty if not known.
        chains: Holders, the shortest reference chain first.
        graph: The graph behind all tensors together, each node once, at the last inspection.
        nodes_per_step: Graph nodes added per step; 0 if not evaluated.
        cycle: The elements of an unreachable cycle, the first repeated at the end: type names,
            ``function walk``, ``cell walk of its closure``; for an autograd reference cycle also
            ``Parameter.grad``, ``Tensor.grad_fn``.
        shape: The shape of a typical tensor, or None.
        storage_bytes: Bytes of that tensor's storage at the same time, or None.
        is_enlarged: Whether the same ``n`` tensors become larger, instead of more and more.
        copied_share: The least share of the workers' growth that is copied pages of the main
            process; 0 to 1.
        made_share: The least share of the workers' growth that they allocated; 0 to 1.
        operators: The operators that allocate native growth, most bytes first.
        is_mapped: Whether native growth is memory that was mapped beside C's heap.
        is_for_new_shapes: Whether native growth is a library's plans for shapes of tensors that had
            not been there before.
        growth: The measured size over the steps. For tensors it is the size of all tensors of the
            same device, type and size, of which each allocation site has its share; for a graph,
            of its nodes and saved tensors; for host memory, of all that no tensor owns. None if it
            was not measured.
        limit_bytes: The least number of bytes that are retained once the container that holds them
            is full; None if it has no limit.
    """

    kind: LeakKind
    device: str
    per_step_bytes: int
    bytes: int
    n: int
    first_step: int
    last_step: int
    type: str = "torch.Tensor"
    stack: tuple[Frame, ...] = ()
    stack_basis: Literal["seen", "node", "unknown"] = "unknown"
    code: str = ""
    chains: tuple[Chain, ...] = ()
    graph: Graph | None = None
    nodes_per_step: float = 0.0
    cycle: tuple[str, ...] = ()
    shape: TensorShape | None = None
    storage_bytes: int | None = None
    is_enlarged: bool = False
    copied_share: float = 0.0
    made_share: float = 0.0
    operators: tuple[str, ...] = ()
    is_for_new_shapes: bool = False
    is_mapped: bool = False
    growth: Growth | None = None
    limit_bytes: int | None = None


def limit_together(leaks: Iterable[Leak]) -> int | None:
    """Sum the maximum sizes of several leaks; None if one of them has no limit."""
    limits = [leak.limit_bytes for leak in leaks]
    return None if None in limits else sum(filter(None, limits))


@dataclass(frozen=True)
class MemorySample:
    """Memory at one step boundary. Values that were not measured there are None.

    Attributes:
        step: The step that has just ended, from 1.
        ts_ns: Nanoseconds since monitoring began.
        tensor_bytes: Bytes of the storages of live tensors, each storage once, by device.
        graph_bytes: Bytes saved for backward, without the bytes of live tensors.
        garbage_bytes: Bytes of tensors in unreachable cycles.
        heap_bytes: Bytes that C's allocator has allocated, without profkit's own.
        heap_free_bytes: Bytes that were freed, and that C's allocator keeps.
        allocated_bytes: Allocated bytes of all device allocators together.
        reserved_bytes: Their reserved bytes.
        worker_bytes: Private memory of one DataLoader worker.
        own_ns: Nanoseconds until then that are no step's: those that profkit has taken, and those
            for which the main thread had no core.
    """

    step: int
    ts_ns: int
    host_rss_bytes: int | None = None
    tensor_bytes: dict[str, int] | None = None
    graph_bytes: int | None = None
    garbage_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    worker_bytes: int | None = None
    own_ns: int = 0
    heap_bytes: int | None = None
    heap_free_bytes: int | None = None


@dataclass(frozen=True)
class MonitoringCost:
    """The overhead of monitoring.

    Attributes:
        total_ns: Time of all samples and inspections.
        n_tensor_scans: Scans over all live objects.
        share: ``total_ns`` as a share of the monitored time.
        memory_bytes: Most memory that it took to track the program's tensors, for which there is
            an upper limit.
    """

    total_ns: int = 0
    n_samples: int = 0
    n_tensor_scans: int = 0
    share: float = 0.0
    memory_bytes: int = 0


@dataclass(frozen=True)
class SyncSite:
    """A source line at which the host waited for a device.

    Attributes:
        frame: The source line; None in a thread that runs no user code.
        allowed_reason: The reason given to ``profkit.allow_sync``, or None.
    """

    operation: str
    frame: Frame | None
    n_calls: int
    allowed_reason: str | None = None


@dataclass(frozen=True)
class HostPeak:
    """The highest resident memory of the process, where it was far above that after steps.

    Attributes:
        bytes: The highest resident memory.
        resident_bytes: The highest one at the end of a step.
        after_step: The last step whose end came before it, as far as samples tell.
        until_step: The first step whose end came after it, or None: it came after the last sample.
    """

    bytes: int
    resident_bytes: int
    after_step: int
    until_step: int | None


@dataclass(frozen=True)
class WorkerRestarts:
    """How long a program waits as a loader starts its workers anew, over the whole run.

    Attributes:
        frame: The source line that iterates over the loader.
        n: Starts of workers after the first one.
        ns: Time of these starts, and of the ends of all workers.
    """

    frame: Frame
    n: int
    ns: int


@dataclass(frozen=True)
class LiveMemory:
    """The memory of a monitored program over its steps.

    Attributes:
        step_definition: The meaning of a step, as in
            :class:`~profkit.model.capture_info.CaptureInfo`.
        n_steps: Steps that ended while monitoring.
        monitored_ns: Time from the first sample to the end.
        began_unix_us: Time of the first sample, in microseconds since 1970; 0 if not known.
        samples: A few hundred at most, thinned out over long runs.
        leaks: The most bytes per step first.
        n_evaluated_steps: Steps over which growth was evaluated; 0 if there were too few.
        not_measured: What could not be measured, one sentence each.
        sync_sites: Source lines at which the host waited for a CUDA device, the most calls first;
            None if syncs were not recorded.
        unexplained_per_step_bytes: Host memory growth per step that no leak explains, or None.
        host_peak: The peak of the process, if no end of a step shows it; else None.
        worker_restarts: The loader that takes longest for new workers; None if none starts any.
        schema: Name and version of this layout.
    """

    name: str
    step_definition: str
    n_steps: int
    monitored_ns: int
    samples: tuple[MemorySample, ...] = ()
    leaks: tuple[Leak, ...] = ()
    n_evaluated_steps: int = 0
    not_measured: tuple[str, ...] = ()
    cost: MonitoringCost = field(default_factory=MonitoringCost)
    torch: str | None = None
    devices: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()
    began_unix_us: int = 0
    sync_sites: tuple[SyncSite, ...] | None = None
    unexplained_per_step_bytes: int | None = None
    host_peak: HostPeak | None = None
    worker_restarts: WorkerRestarts | None = None
    schema: str = SCHEMA

    def to_pandas(self) -> "pd.DataFrame":
        """Return the samples as a DataFrame, one row each, with ``<NA>`` for values not measured.

        ``tensor_bytes`` is the sum over all devices.
        """
        import pandas as pd

        table = pd.DataFrame([asdict(sample) for sample in self.samples], columns=_SAMPLE_COLUMNS)
        by_device = table["tensor_bytes"]
        table["tensor_bytes"] = [sum(sizes.values()) if sizes else None for sizes in by_device]
        return table.astype("Int64")


_SAMPLE_COLUMNS: Final = [field.name for field in fields(MemorySample)]
