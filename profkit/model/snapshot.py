"""A memory snapshot of torch's caching allocator: its segments and blocks, and its history.

Columns as in :mod:`profkit.model.events`: equal-length and read-only, one entry per row.

Source: ``torch/csrc/cuda/memory_snapshot.cpp`` and ``torch/csrc/cuda/Module.cpp`` (contents of a
snapshot), ``c10/cuda/CUDACachingAllocator.h`` (``SegmentInfo``, ``BlockInfo``, ``TraceEntry``).
"""

from collections.abc import Mapping
from dataclasses import field, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from profkit.dataclass import dataclass
from profkit.model.device_bytes import DeviceBytes
from profkit.model.events import MISSING, Int32s, Int64s, Mask, SparseColumn
from profkit.model.location import Frame

if TYPE_CHECKING:
    import pandas as pd

UInt8s = npt.NDArray[np.uint8]

NO_STACK: Final = -1
"""Stands for an allocation without a recorded stack."""


class State(IntEnum):
    """State of a block."""

    INACTIVE = 0
    """Free, in a segment that the allocator has reserved."""
    ALLOCATED = 1
    """In use by a tensor (``active_allocated``)."""
    PENDING_FREE = 2
    """Freed but pending on another stream (``active_pending_free``, in PyTorch's documentation
    ``active_awaiting_free``): active, and no longer allocated."""
    UNKNOWN = 3
    """A state that this version of profkit does not know."""


class Action(IntEnum):
    """Action of the allocator."""

    OTHER = 0
    """An action that this version of profkit does not know."""
    ALLOC = 1
    FREE_REQUESTED = 2
    """The program freed a block; it stays active while pending on another stream."""
    FREE_COMPLETED = 3
    """The block is inactive."""
    SEGMENT_ALLOC = 4
    """Memory was obtained from the driver (``cudaMalloc``)."""
    SEGMENT_FREE = 5
    """Memory was returned to the driver (``cudaFree``)."""
    SEGMENT_MAP = 6
    """An expandable segment grew."""
    SEGMENT_UNMAP = 7
    """An expandable segment shrank."""
    SNAPSHOT = 8
    OOM = 9
    """An allocation failed; it has no address."""


@dataclass(frozen=True)
class SegmentTable:
    """Segments: memory that the allocator has reserved from the driver, in file order.

    Attributes:
        allocated_bytes: Bytes of its allocated blocks, as the allocator reports them.
        active_bytes: Bytes of its active blocks, as the allocator reports them.
        stream: The stream whose requests it serves.
        is_large: Whether it serves requests above 1 MiB.
        is_expandable: Whether it is an expandable segment.
        pool: Index into :attr:`MemorySnapshot.pools`.
        stack: Stack of the driver call, or :data:`NO_STACK`.
    """

    device: Int32s
    address: Int64s
    total_bytes: Int64s
    allocated_bytes: Int64s
    active_bytes: Int64s
    stream: Int64s
    is_large: Mask
    is_expandable: Mask
    pool: Int32s
    stack: Int32s

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True)
class BlockTable:
    """Blocks: parts of segments, allocated or free, by segment and address.

    Attributes:
        segment: Row of its segment.
        address: Start address; computed from the preceding blocks where the file has none.
        requested_bytes: Requested size, before rounding.
        state: A :class:`State` value.
        stack: Stack of the allocation, or :data:`NO_STACK`.
    """

    segment: Int32s
    address: Int64s
    n_bytes: Int64s
    requested_bytes: Int64s
    state: UInt8s
    stack: Int32s

    def __len__(self) -> int:
        return len(self.address)

    @property
    def is_active(self) -> Mask:
        """Blocks in use, and those pending on another stream."""
        return np.isin(self.state, (State.ALLOCATED, State.PENDING_FREE))


@dataclass(frozen=True)
class HistoryTable:
    """History of the allocator, by device, each in time order.

    Attributes:
        device: Ordinal of the device, ascending.
        action: An :class:`Action` value.
        address: Of the block or segment; :data:`~profkit.model.events.MISSING` for an OOM.
        n_bytes: Size of the block or segment. Of an allocation and its free, the requested size or
            the rounded one, depending on the version of PyTorch.
        time_us: Microseconds since 1970 of the allocator's clock, or ``MISSING`` (before 2.1).
        stack: Stack of the action, or :data:`NO_STACK`.
        free_bytes: For an OOM, the device's free memory as the driver reported it.
    """

    device: Int32s
    action: UInt8s
    address: Int64s
    n_bytes: Int64s
    stream: Int64s
    time_us: Int64s
    stack: Int32s
    free_bytes: SparseColumn

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True)
class Stacks:
    """Each stack once, innermost frame first.

    Attributes:
        frames: Each frame once.
        start: Index into ``frame`` of each stack's first entry, and the end of the last one. Shape
            ``(k+1,)``.
        frame: Indices into ``frames``, stack after stack.
    """

    frames: tuple[Frame, ...]
    start: Int32s
    frame: Int32s

    def __len__(self) -> int:
        return len(self.start) - 1

    def of(self, stack: int) -> tuple[Frame, ...]:
        """Return the frames of a stack, innermost first; none for :data:`NO_STACK`."""
        if stack == NO_STACK:
            return ()
        frames = self.frame[self.start[stack] : self.start[stack + 1]].tolist()
        return tuple(self.frames[frame] for frame in frames)


@dataclass(frozen=True)
class Annotation:
    """Begin or end of a named region (``record_function``).

    Attributes:
        time_us: Time on the history's clock.
        is_start: Whether it is the begin.
    """

    name: str
    device: int
    time_us: int
    is_start: bool


@dataclass(frozen=True)
class SnapshotNotes:
    """Problems that the reader encountered.

    Attributes:
        n_inconsistent_segments: Number of segments whose blocks do not add up to their size, or
            whose recorded figures differ from the sums over their blocks.
        n_skipped: Number of entries that are not a segment, block or event.
        uncompressed_bytes: Size of the pickle.
    """

    n_inconsistent_segments: int = 0
    n_skipped: int = 0
    uncompressed_bytes: int = 0
    stages_ns: Mapping[str, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class MemorySnapshot:
    """A memory snapshot.

    Attributes:
        history: History of the allocator, as far back as its buffer reaches.
        stacks: Stacks of all of these.
        pools: Ids of memory pools; ``(0, 0)`` is the default pool, others are private (CUDA graphs,
            ``torch.cuda.MemPool``).
        annotations: Named regions, in file order.
        settings: ``allocator_settings`` of the file, flat: text, numbers, booleans.
        devices: Ordinals of the devices in the snapshot, ascending.
        driver: Owners of the devices' memory, where profkit took the snapshot.
    """

    path: str
    segments: SegmentTable
    blocks: BlockTable
    history: HistoryTable
    stacks: Stacks
    pools: tuple[tuple[int, int], ...] = ()
    annotations: tuple[Annotation, ...] = ()
    settings: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    devices: tuple[int, ...] = ()
    driver: tuple[DeviceBytes, ...] = ()
    notes: SnapshotNotes = field(default_factory=SnapshotNotes)

    def to_pandas(self, table: Literal["blocks", "history"] = "blocks") -> "pd.DataFrame":
        """Return the live and free blocks, or the history, as a DataFrame.

        Args:
            table: ``blocks``: ``device``, ``segment``, ``address``, ``n_bytes``,
                ``requested_bytes``, ``state`` and ``stack``. ``history``: ``device``, ``action``,
                ``address``, ``n_bytes``, ``stream``, ``time_us`` and ``stack``. Both with ``file``,
                ``line`` and ``function`` of the innermost frame, and ``<NA>`` for missing values.
        """
        import pandas as pd

        rows = self.blocks if table == "blocks" else self.history
        columns: dict[str, Any] = {}
        if table == "blocks":
            columns["device"] = self.segments.device[self.blocks.segment]
        for name in (column.name for column in fields(rows)):
            values = getattr(rows, name)
            if name in _LABELS:
                columns[name] = np.array(_LABELS[name], dtype=object)[values]
            elif isinstance(values, np.ndarray):
                columns[name] = pd.arrays.IntegerArray(values, values == MISSING)

        # The number of no stack is -1, which indexes the None at the end.
        innermost = [self.stacks.of(stack)[:1] for stack in range(len(self.stacks))]
        for name in ("file", "line", "function"):
            by_stack = [getattr(frames[0], name) if frames else None for frames in innermost]
            columns[name] = np.array([*by_stack, None], dtype=object)[rows.stack]
        return pd.DataFrame(columns).astype({"line": "Int64"})


_LABELS: Final = {
    "state": tuple(state.name.lower() for state in State),
    "action": tuple(action.name.lower() for action in Action),
}
