"""A memory snapshot of torch's caching allocator: what stood when it was taken, and how it came.

Columns as in :mod:`profkit.model.events`: equal-length, read-only, one entry a row.

Source: ``torch/csrc/cuda/memory_snapshot.cpp`` and ``torch/csrc/cuda/Module.cpp`` (what a snapshot
holds), ``c10/cuda/CUDACachingAllocator.h`` (``SegmentInfo``, ``BlockInfo``, ``TraceEntry``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from profkit.model.device_bytes import DeviceBytes
from profkit.model.events import MISSING, Int32s, Int64s, Mask, SparseColumn
from profkit.model.location import Frame

if TYPE_CHECKING:
    import pandas as pd

UInt8s = npt.NDArray[np.uint8]

NO_STACK = -1
"""The stack of what was allocated without one being kept."""


class State(IntEnum):
    """What a block is used for."""

    INACTIVE = 0
    """Free, within a segment that the allocator keeps."""
    ALLOCATED = 1
    """A tensor's (``active_allocated``)."""
    PENDING_FREE = 2
    """Freed by the program, and still in use by another stream (``active_pending_free``, in
    PyTorch's documentation ``active_awaiting_free``): active, and no longer allocated."""
    UNKNOWN = 3
    """A state that this version of profkit does not know."""


class Action(IntEnum):
    """What the allocator did."""

    OTHER = 0
    """An action that this version of profkit does not know."""
    ALLOC = 1
    FREE_REQUESTED = 2
    """The program freed a block; where another stream still uses it, it stays active."""
    FREE_COMPLETED = 3
    """The block is inactive."""
    SEGMENT_ALLOC = 4
    """Memory came from the driver (``cudaMalloc``)."""
    SEGMENT_FREE = 5
    """Memory went back to the driver (``cudaFree``)."""
    SEGMENT_MAP = 6
    """An expandable segment grew."""
    SEGMENT_UNMAP = 7
    """An expandable segment shrank."""
    SNAPSHOT = 8
    OOM = 9
    """A request that could not be met; it has no address."""


@dataclass(frozen=True)
class SegmentTable:
    """Stretches of memory that the allocator has from the driver, in the order of the file.

    Attributes:
        device: Ordinal of the device.
        address: Where it begins.
        total_bytes: Its length.
        allocated_bytes: Bytes of its allocated blocks, as the allocator says.
        active_bytes: Bytes of its active blocks, likewise.
        stream: The stream that it serves.
        is_large: Whether it serves requests above 1 MiB.
        is_expandable: Whether it can grow.
        pool: Index into :attr:`MemorySnapshot.pools`.
        stack: Stack that took it from the driver, or :data:`NO_STACK`.
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
    """Parts of segments, each a tensor's or free, by segment and address.

    Attributes:
        segment: Row of its segment.
        address: Where it begins; worked out from the blocks before it where the file has none.
        n_bytes: Its length.
        requested_bytes: What was asked for, before rounding.
        state: A :class:`State` value.
        stack: Stack that allocated it, or :data:`NO_STACK`.
    """

    segment: Int32s
    address: Int64s
    n_bytes: Int64s
    requested_bytes: Int64s
    state: UInt8s
    stack: Int32s

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True)
class HistoryTable:
    """What the allocator did, device by device, each in the order of time.

    Attributes:
        device: Ordinal of the device, ascending.
        action: An :class:`Action` value.
        address: Of the block or segment; :data:`~profkit.model.events.MISSING` for an OOM.
        n_bytes: Its length. Of an allocation what was asked for or what was given, as the version
            of PyTorch has it; of its free the same.
        stream: The stream.
        time_us: Microseconds since 1970 of the allocator's clock, or ``MISSING`` (before 2.1).
        stack: Stack that did it, or :data:`NO_STACK`.
        free_bytes: For an OOM what the driver said was free on the device.
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
    """Every stack once, innermost frame first.

    Attributes:
        frames: Every frame once.
        start: Where each stack begins in ``frame``, and where the last one ends. Shape ``(k+1,)``.
        frame: Indices into ``frames``, stack after stack.
    """

    frames: tuple[Frame, ...]
    start: Int32s
    frame: Int32s

    def __len__(self) -> int:
        return len(self.start) - 1

    def of(self, stack: int) -> tuple[Frame, ...]:
        """The frames of a stack, innermost first; none for :data:`NO_STACK`."""
        if stack == NO_STACK:
            return ()
        return tuple(
            self.frames[each]
            for each in self.frame[self.start[stack] : self.start[stack + 1]].tolist()
        )


@dataclass(frozen=True)
class Annotation:
    """The begin or the end of a named region, as ``record_function`` told the allocator.

    Attributes:
        name: The region's name.
        device: Ordinal of the device.
        time_us: When, on the clock of the history.
        is_start: Whether it begins.
    """

    name: str
    device: int
    time_us: int
    is_start: bool


@dataclass(frozen=True)
class SnapshotNotes:
    """What the loader met.

    Attributes:
        n_odd_segments: Segments whose blocks do not add up to their size, or whose own figures
            are not those of their blocks.
        n_skipped: Entries that are no segment, block or event at all.
        uncompressed_bytes: Size of the pickle.
        stages_ns: How long each stage of reading took, in nanoseconds.
    """

    n_odd_segments: int = 0
    n_skipped: int = 0
    uncompressed_bytes: int = 0
    stages_ns: Mapping[str, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class MemorySnapshot:
    """A snapshot, read once.

    Attributes:
        path: Where it came from.
        segments: Memory that the allocator has from the driver.
        blocks: What it is divided into.
        history: What the allocator did before, as far back as its ring buffer goes.
        stacks: The stacks of all of these.
        pools: Ids of memory pools; ``(0, 0)`` is the common one, others are private (CUDA graphs,
            ``torch.cuda.MemPool``).
        annotations: Named regions, in the order of the file.
        settings: ``allocator_settings`` as the file has them, flat: text, numbers, booleans.
        devices: Ordinals of the devices that it tells of, ascending.
        driver: Whose the devices' memory was, where profkit took the snapshot.
        notes: What the loader met.
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
        """The blocks as they stand, or the history, as a DataFrame: a row each.

        Args:
            table: ``blocks``: ``device``, ``segment``, ``address``, ``n_bytes``,
                ``requested_bytes``, ``state`` and ``stack``. ``history``: ``device``, ``action``,
                ``address``, ``n_bytes``, ``stream``, ``time_us`` and ``stack``. Both with ``file``,
                ``line`` and ``function`` of the innermost frame, and ``<NA>`` for what a row does
                not have.
        """
        import pandas as pd

        rows = self.blocks if table == "blocks" else self.history
        columns: dict[str, Any] = {}
        if table == "blocks":
            columns["device"] = self.segments.device[self.blocks.segment]
        for each in fields(rows):
            values = getattr(rows, each.name)
            if each.name in _WORDS:
                columns[each.name] = np.array(_WORDS[each.name], dtype=object)[values]
            elif isinstance(values, np.ndarray):
                columns[each.name] = pd.arrays.IntegerArray(values, values == MISSING)
        innermost = [self.stacks.of(stack)[:1] for stack in range(len(self.stacks))]
        for name in ("file", "line", "function"):
            known = [getattr(frames[0], name) if frames else None for frames in innermost]
            columns[name] = np.array([*known, None], dtype=object)[rows.stack]
        return pd.DataFrame(columns).astype({"line": "Int64"})


_WORDS: Final = {
    "state": tuple(state.name.lower() for state in State),
    "action": tuple(action.name.lower() for action in Action),
}
