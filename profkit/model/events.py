"""A trace's events as columns.

Rows are the trace's complete events (``ph`` ``X``), in file order. Columns have one entry per row;
attributes of only some events are :class:`SparseColumn`. All arrays are read-only.
"""

import re
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from profkit.dataclass import dataclass

if TYPE_CHECKING:
    import pandas as pd

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Float64s = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]
"""Row numbers of an :class:`EventTable`."""
Mask = npt.NDArray[np.bool_]

MISSING: Final = int(np.iinfo(np.int64).min)
"""Stands for an integer that an event does not have. No id, size or time has this value."""

_Column = TypeVar("_Column", Int64s, Float64s)
RowArray = TypeVar("RowArray", Rows, Int32s)

NO_ROW: Final = -1
"""Stands for no row: no parent, no launch, no operator."""


def dtype_of(array_type: Any) -> np.dtype[Any]:  # noqa: ANN401  (a type with arguments)
    """Return the dtype of ``NDArray[np.int32]``.

    Since NumPy 2.5 its last argument is the scalar type; before, a ``dtype`` with that argument.
    """
    last = get_args(array_type)[-1]
    (scalar,) = get_args(last) or (last,)
    dtype: np.dtype[Any] = np.dtype(scalar)
    return dtype


class Category(IntEnum):
    """Kind of an event, over all versions of PyTorch and all vendors."""

    OTHER = 0
    OP = 1
    """A PyTorch operator on the host (``cpu_op``; in old traces ``Operator``)."""
    ANNOTATION = 2
    """``user_annotation``: steps, regions, data-loader waits; not their copies on the device."""
    DEVICE_ANNOTATION = 3
    """``gpu_user_annotation``: the copy of an annotation on a stream; not device work."""
    KERNEL = 4
    MEMCPY = 5
    MEMSET = 6
    RUNTIME = 7
    """A call of the CUDA, HIP or SYCL runtime."""
    DRIVER = 8
    """A driver call (``cuLaunchKernel``), or a host wait that an XPU's profiler wrote as
    ``xpu_sync``, named after the Level Zero call."""
    PYTHON = 9
    """A Python function, builtin or ``nn.Module`` call (``python_function``)."""
    OVERHEAD = 10
    """Overhead of the profiler (``overhead``)."""
    DEVICE_SYNC = 11
    """``cuda_sync``, barriers of ``xpu_sync``: a synchronization on the device's side; not work."""
    SPAN = 12
    """``Trace``: the whole recording."""
    UNFINISHED = 13
    """An operator or annotation without a known end, which torch closed when it stopped; its length
    is 0, and it contains nothing."""
    PROFKIT = 14
    """The outermost call of profkit's own work in a thread; its time is attributed to nothing."""
    CONCEALED = 15
    """Calls within that work, profkit's wrappers and threads, and the launcher of the program. The
    calls within a wrapper belong to its caller."""


DEVICE_WORK: Final = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)
HOST_CALLS: Final = (Category.RUNTIME, Category.DRIVER)
"""Calls of a vendor's runtime and of its driver."""
RECORD_FUNCTIONS: Final = (Category.OP, Category.ANNOTATION)
"""Operators and annotations, which torch writes for each ``RecordFunction``."""
PROGRAM: Final = (*RECORD_FUNCTIONS, Category.PYTHON, *HOST_CALLS)
"""Events of the program on the host."""
HIDDEN: Final = (Category.UNFINISHED, Category.PROFKIT, Category.CONCEALED)
"""Categories that no graph, timeline or table shows."""


@dataclass(frozen=True)
class SparseColumn:
    """A column with values for some rows only.

    Attributes:
        rows: The rows with a value, ascending. Shape ``(k,)``.
        values: Their values. Shape ``(k,)``.
    """

    rows: Int32s
    values: npt.NDArray[Any]

    def at(self, rows: npt.NDArray[np.integer[Any]]) -> Int64s:
        """Values of some rows, :data:`MISSING` where a row has none. Shape of ``rows``."""
        return self._filled(np.full(len(rows), MISSING, dtype=np.int64), rows)

    def figures_at(self, rows: npt.NDArray[np.integer[Any]]) -> Float64s:
        """Values of some rows of a float column, NaN where a row has none. Shape of ``rows``."""
        return self._filled(np.full(len(rows), np.nan), rows)

    def _filled(self, found: _Column, rows: npt.NDArray[np.integer[Any]]) -> _Column:
        if len(self.rows):
            place = self._places(rows)
            has = self.rows[place] == rows
            found[has] = self.values[place[has]]
        return found

    def _places(self, rows: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.integer[Any]]:
        """Find the places of some rows among the rows with a value. Shape of ``rows``."""
        if len(rows) < len(self.rows):
            # Of another type they would make NumPy convert all rows of the column at each call.
            place = np.searchsorted(self.rows, rows.astype(self.rows.dtype))
            place[place == len(self.rows)] = 0
            return place
        # For most rows of a recording a table is faster. Its last place belongs to no row.
        table = np.zeros(max(int(self.rows[-1]), int(rows.max())) + 2, dtype=np.int32)
        table[self.rows] = np.arange(len(self.rows), dtype=np.int32)
        return np.asarray(table[rows])


NO_VALUES: Final = SparseColumn(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64))
"""A column without values."""


@dataclass(frozen=True)
class Lane:
    """A host thread, or a stream of a device.

    Attributes:
        pid: The process, or a device's number, as written in the file.
        tid: The thread, or a stream, as written in the file.
        process: The process's name, or empty.
        thread: The thread's name, or empty.
    """

    pid: str
    tid: str
    process: str = ""
    thread: str = ""


@dataclass(frozen=True)
class EventTable:
    """Complete events as equal-length columns.

    Attributes:
        position: Index of the event in the file's ``traceEvents``: its id in evidence.
        category: A :class:`Category` value.
        name: Index into ``names``.
        lane: Index into ``lanes``.
        ts_ns: Start in nanoseconds from the trace's start.
        dur_ns: Duration in nanoseconds; 0 of an event without a known end.
        names: Each name once.
        lanes: Each (process, thread) pair once.
        correlation: Joins a runtime or driver call to the device work it launched.
        external_id: Joins operators, calls and device work (``External id``).
        sequence: Joins a forward operator to its backward operator (``Sequence number``).
        forward_thread: On backward operators, the profiler's number of the forward thread.
        device: Ordinal of the device that ran the work.
        stream: The stream it ran on.
        n_bytes: Bytes of a copy or fill.
        from_device: Ordinal of the device that a copy between two devices reads.
        to_device: Ordinal of the device that it writes.
        collective: Index into ``names`` of the collective that a kernel or an operator belongs to.
            This and the following columns: operators since torch 2.3, kernels since 2.4.
        element_type: Index into ``names`` of the type of its elements, such as ``BFloat16``.
        n_in: Number of elements of its input on this rank.
        n_out: The same of its output.
        group_size: Number of ranks of its process group.
        group_name: Index into ``names`` of the group's name.
        group_description: Index into ``names`` of what the group is for, such as ``default_pg``.
        group_ranks: Index into ``names`` of the group's ranks, as JSON or as a JSON string of it;
            with ``...`` if there are more than 30.
        source_rank: The rank that this one receives from.
        target_rank: The rank that this one sends to.
        collective_seq: Number of the collective in its process group; since torch 2.12. Sends and
            receives have a number of their own on each rank.
        comms_id: Index into ``names`` of an id that all ranks of the collective have, as JSON;
            since torch 2.12.
        call_stack: Index into ``names`` of an operator's Python stack, innermost first, with frames
            separated by ``;`` (torch 1.8 to 1.10).
        input_dims: Index into ``names`` of the shapes of an operator's inputs, as JSON: a list of
            integers per tensor, a list of such lists per list of tensors, an empty one for others.
            Recorded with ``record_shapes``.
        input_types: Index into ``names`` of the inputs' types, as JSON with a string each:
            ``c10::BFloat16``, ``Scalar``.
        concrete_inputs: Index into ``names`` of the values of inputs other than tensors, as JSON
            with a string each: ``"[2, 2]"``. Since torch 2.1.
        grid: Index into ``names`` of the number of blocks of a kernel in three dimensions, as JSON.
        block: The same of the number of threads in each block.
        blocks_per_sm: Blocks of a kernel per multiprocessor of its device, a fraction below 1 where
            there are fewer.
        occupancy_percent: The profiler's estimate of a kernel's occupancy: resident warps in
            percent of the device's maximum.
    """

    position: Int32s
    category: npt.NDArray[np.uint8]
    name: Int32s
    lane: Int32s
    ts_ns: Int64s
    dur_ns: Int64s
    names: tuple[str, ...]
    lanes: tuple[Lane, ...]
    correlation: SparseColumn = NO_VALUES
    external_id: SparseColumn = NO_VALUES
    sequence: SparseColumn = NO_VALUES
    forward_thread: SparseColumn = NO_VALUES
    device: SparseColumn = NO_VALUES
    stream: SparseColumn = NO_VALUES
    n_bytes: SparseColumn = NO_VALUES
    from_device: SparseColumn = NO_VALUES
    to_device: SparseColumn = NO_VALUES
    collective: SparseColumn = NO_VALUES
    element_type: SparseColumn = NO_VALUES
    n_in: SparseColumn = NO_VALUES
    n_out: SparseColumn = NO_VALUES
    group_size: SparseColumn = NO_VALUES
    group_name: SparseColumn = NO_VALUES
    group_description: SparseColumn = NO_VALUES
    group_ranks: SparseColumn = NO_VALUES
    source_rank: SparseColumn = NO_VALUES
    target_rank: SparseColumn = NO_VALUES
    collective_seq: SparseColumn = NO_VALUES
    comms_id: SparseColumn = NO_VALUES
    call_stack: SparseColumn = NO_VALUES
    input_dims: SparseColumn = NO_VALUES
    input_types: SparseColumn = NO_VALUES
    concrete_inputs: SparseColumn = NO_VALUES
    grid: SparseColumn = NO_VALUES
    block: SparseColumn = NO_VALUES
    blocks_per_sm: SparseColumn = NO_VALUES
    occupancy_percent: SparseColumn = NO_VALUES

    def __len__(self) -> int:
        return len(self.ts_ns)

    @property
    def end_ns(self) -> Int64s:
        """End of every event in nanoseconds from the trace's start. Shape ``(n,)``."""
        return self.ts_ns + self.dur_ns

    @cached_property
    def rows_by_category(self) -> tuple[Int32s, ...]:
        """Return the rows of each category, ascending."""
        order = np.argsort(self.category, kind="stable").astype(np.int32)
        ends = np.cumsum(np.bincount(self.category, minlength=max(Category) + 1))
        return tuple(np.split(order, ends[:-1]))

    @cached_property
    def names_by_category(self) -> tuple[Int32s, ...]:
        """Return the number of the name of each row of ``rows_by_category``."""
        return tuple(self.name[rows] for rows in self.rows_by_category)

    @cached_property
    def has_name(self) -> npt.NDArray[np.bool_]:
        """Return which names the events of each category have. Shape ``(categories, names)``."""
        is_used = np.zeros((max(Category) + 1, len(self.names)), dtype=np.bool_)
        for is_used_by, names in zip(is_used, self.names_by_category, strict=True):
            is_used_by[names] = True
        return is_used

    @cached_property
    def matches(self) -> "dict[tuple[re.Pattern[str], tuple[Category, ...]], Mask]":
        """Return the cache of searched names, filled by ``index.runtime_calls.names_matching``."""
        return {}

    @property
    def has_python_calls(self) -> bool:
        """Return whether calls of Python functions were recorded."""
        return bool(len(self.rows_by_category[Category.PYTHON]))

    def name_of(self, row: int) -> str:
        """Return the name of one event."""
        return str(self.names[self.name[row]])

    def to_pandas(self) -> "pd.DataFrame":
        """Return the events as a DataFrame, one row per event, in file order.

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

    @cached_property
    def device_work(self) -> Rows:
        """Return the rows of kernels, copies and fills, ascending."""
        return self.rows_of(*DEVICE_WORK)

    @cached_property
    def kernels(self) -> Rows:
        """Return the rows of kernels, ascending."""
        return self.rows_of(Category.KERNEL)

    @cached_property
    def copies(self) -> Rows:
        """Return the rows of copies, ascending."""
        return self.rows_of(Category.MEMCPY)

    @cached_property
    def host_calls(self) -> Rows:
        """Return the rows of runtime and driver calls, ascending."""
        return self.rows_of(*HOST_CALLS)

    def sort_by_start(self, rows: RowArray) -> RowArray:
        """Sort rows by start; rows that start at once keep their order."""
        return rows[np.argsort(self.ts_ns[rows], kind="stable")]

    def sort_by_thread(self, rows: RowArray) -> RowArray:
        """Sort rows by thread, then start."""
        return rows[np.lexsort((self.ts_ns[rows], self.lane[rows]))]

    def rows_of(self, *categories: Category) -> Rows:
        """Rows of the given categories, ascending."""
        return np.flatnonzero(np.isin(self.category, categories))


@dataclass(frozen=True)
class MemoryTable:
    """The trace's ``[memory]`` events, in time order.

    Attributes:
        position: Index in the file's ``traceEvents``.
        lane: Index into the event table's ``lanes``.
        ts_ns: Nanoseconds from the trace's start.
        n_bytes: Bytes allocated, or freed when negative.
        address: Address of the block; :data:`MISSING` in traces older than torch 1.12.
        device_type: PyTorch's device type: 0 host, 1 CUDA, 6 HIP, 12 XPU.
        device: Ordinal of the device; -1 on the host.
        total_allocated: Allocated bytes after the event, as the allocator reports them, or
            :data:`MISSING`.
        total_reserved: Reserved bytes after the event, or :data:`MISSING`.

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


def is_within(column: Any, low: int, high: int) -> bool:  # noqa: ANN401  (an array of integers)
    """Return whether all values are at least ``low`` and at most ``high``."""
    return not len(column) or (low <= int(column.min()) and int(column.max()) <= high)


def is_ascending(column: Any, step: int) -> bool:  # noqa: ANN401  (an array of integers)
    """Return whether each value exceeds the one before by at least ``step``."""
    return not len(column) or bool((column[1:] >= column[:-1] + step).all())


def are_equally_long(*columns: Any) -> bool:  # noqa: ANN401  (arrays)
    """Return whether columns have the same length."""
    return len({len(column) for column in columns}) == 1
