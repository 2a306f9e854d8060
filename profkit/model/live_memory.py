"""What was watched of a running program's memory, step by step, and what grew.

Plain data that goes through JSON unchanged: recording writes it, analysis reads it. A file of it
ends in ``.memory.json.gz``. Sizes are bytes; None is a figure that is not known.
"""

from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Final, Literal

from profkit.model.location import Frame

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "profkit.memory/2"

LeakKind = Literal["tensors", "graph", "garbage", "host", "workers"]
"""What grows: tensors that are alive; the autograd graph behind one; unreachable cycles, which wait
for the garbage collector or are autograd's own; host memory that no tensor owns;
the memory of a loader's workers."""

HolderKind = Literal[
    "module-global", "class", "instance", "closure", "cache", "traceback", "frame", "hook",
    "thread", "generator", "context", "optimizer", "unknown",
]  # fmt: skip
"""What stands at the root of a chain, or on it where that says more: ``cache``: functools' caches;
``traceback``: the frames of an exception that is kept; ``frame``: locals of a function that still
runs; ``hook``: a module's or tensor's hooks; ``context``: an autograd function's ``ctx``."""


@dataclass(frozen=True)
class Chain:
    """Who holds an object: from a root to the object, in the user's words.

    Attributes:
        kind: What kind of holder it is.
        parts: Such as ``("__main__.history", "[17]")`` or ``("Net.seen", "['3']")``; put together
            they read as an expression where that is possible.
        container: Type of the innermost container that grows, such as ``list`` or ``dict``; empty
            where none is on the chain.
        container_len: How many entries it had at the last look, or None.
    """

    kind: HolderKind
    parts: tuple[str, ...]
    container: str = ""
    container_len: int | None = None


@dataclass(frozen=True)
class Graph:
    """The autograd graph behind tensors that are held.

    Attributes:
        n_nodes: Nodes reached from their ``grad_fn``.
        saved_bytes: Bytes of the storages that they keep for backward, each storage once.
        root: Name of the ``grad_fn`` of a typical one, such as ``AddBackward0``.
        is_exact: Whether the walk reached all of it, else it stopped at its limit.
    """

    n_nodes: int
    saved_bytes: int
    root: str
    is_exact: bool = True


@dataclass(frozen=True)
class Leak:
    """One thing that grows: from one line, or held by one holder.

    Attributes:
        kind: What grows.
        device: ``cpu``, ``cuda:0``, ``pinned``; ``host`` for what no tensor owns;
            ``workers`` for a loader's workers.
        per_step_bytes: By how much a step, judged over the steps watched; with what the graph
            behind them saved, where there is one, but not its nodes themselves.
        bytes: How much of it there was at the last look, likewise.
        n: How many objects that was; how many workers.
        first_step: The first step of the stretch that grew.
        last_step: The last step of it.
        type: The Python type, such as ``torch.Tensor``, ``numpy.ndarray``, ``dict``.
        stack: Where it is made, innermost frame of the user's own code first; empty if not known.
        stack_basis: How that is known: ``seen`` (the allocation itself was seen), ``node`` (the
            line that made its autograd node), or ``unknown``.
        code: The text of the first frame's line, without its indent; empty if not known.
        chains: Who holds it, the shortest chain first.
        graph: The graph behind all of them together, each node once, at the last look; or None.
        nodes_per_step: Nodes that it gains a step; 0 where that was not judged.
        cycle: What an unreachable cycle goes through, the first one repeated at the end; for
            garbage. Types by their names, ``function walk``, and ``cell walk of its closure``. Of
            a ring that autograd closes, links too: ``Parameter.grad``, ``Tensor.grad_fn``.
        shape: Of a typical one, such as ``(120, 3) float32``; empty if not a tensor.
        copied_share: Of workers, how much of the growth is copies of what the main process has, at
            the least; 0 to 1.
        made_share: Of workers, how much of it they have made themselves, at the least; 0 to 1.
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
    shape: str = ""
    copied_share: float = 0.0
    made_share: float = 0.0


@dataclass(frozen=True)
class MemorySample:
    """The figures at one step boundary. A figure that was not taken at this one is None.

    Attributes:
        step: The step that has just ended, from 1.
        ts_ns: Nanoseconds since watching began.
        host_rss_bytes: Resident memory of the process.
        tensor_bytes: Bytes of the storages of live tensors, each storage once, by device.
        graph_bytes: Bytes that autograd keeps for backward, beyond those of live tensors.
        garbage_bytes: Bytes of tensors in unreachable cycles.
        allocated_bytes: The device allocators' allocated bytes, all devices together.
        reserved_bytes: Their reserved bytes.
        worker_bytes: What one of the loader's workers shares with no other process.
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


@dataclass(frozen=True)
class MonitoringCost:
    """What watching cost.

    Attributes:
        total_ns: All looks together.
        n_samples: Looks at the figures.
        n_tensor_scans: Looks at all live objects.
        share: ``total_ns`` as a share of the time watched.
    """

    total_ns: int = 0
    n_samples: int = 0
    n_tensor_scans: int = 0
    share: float = 0.0


@dataclass(frozen=True)
class SyncSite:
    """A line at which the host waited for a device.

    Attributes:
        operation: The operation that waited.
        frame: The user's line; None in a thread that runs none of the user's code.
        n_calls: How often it waited.
        allowed_reason: The reason given to ``profkit.allow_sync``, or None where it was not allowed.
    """

    operation: str
    frame: Frame | None
    n_calls: int
    allowed_reason: str | None = None


@dataclass(frozen=True)
class LiveMemory:
    """A program's memory over its steps.

    Attributes:
        name: The capture's name.
        step_definition: What a step is here, as in :class:`~profkit.model.capture_info.CaptureInfo`.
        n_steps: Steps that were seen.
        monitored_ns: From the first look to the last.
        began_unix_us: When the first look was, in microseconds since 1970; 0 where it is not known.
        samples: The figures, a few hundred at most, thinned out over long runs.
        leaks: What grows, the most bytes a step first.
        n_evaluated_steps: Steps over which growth could be judged; 0 when there were too few.
        not_measured: What could not be watched, a sentence each.
        cost: What watching cost.
        torch: PyTorch's version.
        devices: Names of the devices in use.
        argv: The program and its arguments.
        sync_sites: The lines at which the host waited for a CUDA device, the most calls first, or None
            where nobody listened.
        unexplained_per_step_bytes: Where nothing is seen to grow, and yet the allocators of C and
            Python give out more with every step: how much more.
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
    schema: str = SCHEMA

    def to_pandas(self) -> "pd.DataFrame":
        """The looks as a DataFrame: a row each, a column a figure, ``<NA>`` where not taken.

        ``tensor_bytes`` is the sum over all devices.
        """
        import pandas as pd

        table = pd.DataFrame([asdict(look) for look in self.samples], columns=_LOOK_COLUMNS)
        by_device = table["tensor_bytes"]
        table["tensor_bytes"] = [sum(each.values()) if each else None for each in by_device]
        return table.astype("Int64")


_LOOK_COLUMNS: Final = [each.name for each in fields(MemorySample)]
