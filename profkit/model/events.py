"""A trace's events as columns.

Rows are the trace's complete events (``ph`` ``X``), in the order of the file. Every column has one
entry a row; what only some events carry is a :class:`SparseColumn`. All arrays are read-only.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Float64s = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]
"""Row numbers of an :class:`EventTable`."""
Mask = npt.NDArray[np.bool_]

MISSING: Final = int(np.iinfo(np.int64).min)
"""The value of an integer that an event does not carry. No id, size or time ever has it."""

_Column = TypeVar("_Column", Int64s, Float64s)

NO_ROW: Final = -1
"""The row number that stands for "no such row": no parent, no launch, no operator."""


class Category(IntEnum):
    """What kind of event a row is, over all versions of PyTorch and all vendors."""

    OTHER = 0
    OP = 1
    """A PyTorch operator on the host (``cpu_op``; in old traces ``Operator``)."""
    ANNOTATION = 2
    """``user_annotation``: steps, regions, the loader's wait. Never its copies on the device."""
    DEVICE_ANNOTATION = 3
    """``gpu_user_annotation``: the copy of an annotation on a stream; it is no work."""
    KERNEL = 4
    MEMCPY = 5
    MEMSET = 6
    RUNTIME = 7
    """A call of the CUDA, HIP or SYCL runtime."""
    DRIVER = 8
    """A call of the driver below the runtime (``cuLaunchKernel``), and a wait of the host that an
    XPU's profiler wrote as ``xpu_sync``, named after the Level Zero call."""
    PYTHON = 9
    """A Python function, builtin or ``nn.Module`` call (``python_function``)."""
    OVERHEAD = 10
    """What the profiler itself costs (``overhead``)."""
    DEVICE_SYNC = 11
    """``cuda_sync``, barriers of ``xpu_sync``: how a device saw a wait; it is no work."""
    SPAN = 12
    """``Trace``: the recording as a whole."""


@dataclass(frozen=True)
class SparseColumn:
    """A column that only some rows have.

    Attributes:
        rows: The rows that have a value, ascending. Shape ``(k,)``.
        values: Their values. Shape ``(k,)``.
    """

    rows: Int32s
    values: npt.NDArray[Any]

    def at(self, rows: npt.NDArray[np.integer[Any]]) -> Int64s:
        """The values of some rows, with :data:`MISSING` where a row has none. Shape of ``rows``."""
        return self._given(np.full(len(rows), MISSING, dtype=np.int64), rows)

    def figures_at(self, rows: npt.NDArray[np.integer[Any]]) -> Float64s:
        """The same of a column that holds no whole numbers, with NaN where a row has none."""
        return self._given(np.full(len(rows), np.nan), rows)

    def _given(self, found: _Column, rows: npt.NDArray[np.integer[Any]]) -> _Column:
        if len(self.rows):
            place = np.searchsorted(self.rows, rows)
            place[place == len(self.rows)] = 0
            has = self.rows[place] == rows
            found[has] = self.values[place[has]]
        return found


@dataclass(frozen=True)
class Lane:
    """One line of a trace's timeline: a host thread, or a stream of a device.

    Attributes:
        pid: The process, or a device's number, as written in the file.
        tid: The thread, or a stream, as written in the file.
        process: The process's name where the file tells it, else empty.
        thread: The thread's name where the file tells it, else empty.
    """

    pid: str
    tid: str
    process: str = ""
    thread: str = ""


@dataclass(frozen=True)
class EventTable:
    """Complete events as equal-length columns.

    Attributes:
        position: Place of the event in the file's ``traceEvents``, from 0: its id in evidence.
        category: A :class:`Category` value.
        name: Index into ``names``.
        lane: Index into ``lanes``.
        ts_ns: Start in nanoseconds from the trace's start.
        dur_ns: Length in nanoseconds.
        names: Every name once.
        lanes: Every (process, thread) pair once.
        correlation: Joins a runtime or driver call to the device work it launched.
        external_id: Joins operators, calls and device work (``External id``).
        sequence: Joins a forward operator to its backward one (``Sequence number``).
        forward_thread: On backward operators, the profiler's number of the forward thread.
        device: Ordinal of the device that did the work.
        stream: The stream it ran on.
        n_bytes: Bytes that a copy or a fill moved.
        collective: Index into ``names`` of the collective that a kernel belongs to.
        call_stack: Index into ``names`` of an operator's Python stack, innermost first, its
            frames separated by ``;`` (written by torch 1.8 to 1.10).
        blocks_per_sm: Blocks of a kernel for each multiprocessor of its device, a fraction where
            there are fewer.
        occupancy_percent: The profiler's estimate of how many of the warps that a device can hold
            a kernel has there at once, in percent.
    """

    position: Int32s
    category: npt.NDArray[np.uint8]
    name: Int32s
    lane: Int32s
    ts_ns: Int64s
    dur_ns: Int64s
    names: tuple[str, ...]
    lanes: tuple[Lane, ...]
    correlation: SparseColumn
    external_id: SparseColumn
    sequence: SparseColumn
    forward_thread: SparseColumn
    device: SparseColumn
    stream: SparseColumn
    n_bytes: SparseColumn
    collective: SparseColumn
    call_stack: SparseColumn
    blocks_per_sm: SparseColumn
    occupancy_percent: SparseColumn

    def __len__(self) -> int:
        return len(self.ts_ns)

    @property
    def end_ns(self) -> Int64s:
        """End of every event in nanoseconds from the trace's start. Shape ``(n,)``."""
        return self.ts_ns + self.dur_ns

    def name_of(self, row: int) -> str:
        """The name of one event."""
        return str(self.names[self.name[row]])

    def to_pandas(self) -> "pd.DataFrame":
        """The events as a DataFrame: a row an event, in the order of the file.

        Columns are ``position``, ``category``, ``name``, ``pid``, ``tid``, ``ts_ns``, ``dur_ns``
        and, with ``<NA>`` where an event has none, ``correlation``, ``external_id``, ``device``,
        ``stream`` and ``n_bytes``. Times are nanoseconds from the trace's start.
        """
        import pandas as pd

        categories = np.array([category.name.lower() for category in Category], dtype=object)
        pids = np.array([lane.pid for lane in self.lanes], dtype=object)
        tids = np.array([lane.tid for lane in self.lanes], dtype=object)
        rows = np.arange(len(self))
        columns: dict[str, Any] = {
            "position": self.position,
            "category": categories[self.category],
            "name": np.array(self.names, dtype=object)[self.name],
            "pid": pids[self.lane],
            "tid": tids[self.lane],
            "ts_ns": self.ts_ns,
            "dur_ns": self.dur_ns,
        }
        for key in ("correlation", "external_id", "device", "stream", "n_bytes"):
            values = getattr(self, key).at(rows)
            columns[key] = pd.arrays.IntegerArray(values, values == MISSING)
        return pd.DataFrame(columns)

    def rows_of(self, *categories: Category) -> Rows:
        """Rows of the given categories, ascending."""
        return np.flatnonzero(np.isin(self.category, categories))


@dataclass(frozen=True)
class MemoryTable:
    """The trace's ``[memory]`` events, in the order of time.

    Attributes:
        position: Place in the file's ``traceEvents``.
        lane: Index into the event table's ``lanes``.
        ts_ns: When, in nanoseconds from the trace's start.
        n_bytes: Bytes allocated, or freed when negative.
        address: Address of the block; :data:`MISSING` in traces older than torch 1.12.
        device_type: PyTorch's device type: 0 host, 1 CUDA, 6 HIP, 12 XPU.
        device: Ordinal of the device; -1 on the host.
        total_allocated: The allocator's own figure after the event, in bytes, or
            :data:`MISSING`.
        total_reserved: Bytes that the allocator holds from the driver, or :data:`MISSING`.

    Source: ``torch/csrc/profiler/collection.h`` (``ExtraFields<EventType::Allocation>``) and
    ``c10/core/DeviceType.h``.
    """

    position: Int32s
    lane: Int32s
    ts_ns: Int64s
    n_bytes: Int64s
    address: Int64s
    device_type: Int32s
    device: Int32s
    total_allocated: Int64s
    total_reserved: Int64s

    def __len__(self) -> int:
        return len(self.ts_ns)
