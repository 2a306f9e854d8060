"""Events to columns: every batch's structs become arrays, and the arrays are joined at the end."""

from collections.abc import Iterator
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from profkit.load.kineto.names import CATEGORIES, Interned, LaneTable, plain_name
from profkit.load.kineto.schema import NO_ARGS, Args
from profkit.model.events import (
    MISSING,
    Category,
    EventTable,
    Int64s,
    MemoryTable,
    SparseColumn,
)

_HOST: Final = ("external_id", "sequence", "forward_thread", "call_stack")
_CALL: Final = ("correlation", "external_id")
_WORK: Final = (
    "correlation", "external_id", "device", "stream", "n_bytes", "graph_node", "collective",
)  # fmt: skip
_PYTHON: Final = ("python_id", "python_parent")

_WANTED: Final = {
    Category.OP: _HOST,
    Category.ANNOTATION: _HOST,
    Category.RUNTIME: _CALL,
    Category.DRIVER: _CALL,
    Category.KERNEL: _WORK,
    Category.MEMCPY: _WORK,
    Category.MEMSET: _WORK,
    Category.PYTHON: _PYTHON,
}
"""The columns that the events of a category can have."""

_SPARSE: Final = tuple(dict.fromkeys((*_HOST, *_WORK, *_PYTHON)))
_TEXT: Final = frozenset({"call_stack", "collective"})
_MEMORY: Final = (
    "memory_bytes", "memory_address", "memory_device_type", "memory_device", "total_allocated",
    "total_reserved",
)  # fmt: skip
_MICROSECOND: Final = 1000
_NAME: Final = attrgetter("name")
_CATEGORY: Final = attrgetter("cat")
_LANE: Final = attrgetter("pid", "tid")
_START: Final = attrgetter("ts")
_LENGTH: Final = attrgetter("dur")
_HOST_TYPE: Final = 0
_HOST_DEVICE: Final = -1


def to_ns(microseconds: list[Any]) -> Int64s:
    """Microseconds as integer nanoseconds, exactly.

    Floats are split before they are scaled: up to 2**43 µs they hold three decimals, and above
    that whole microseconds. ``Decimal`` values are exact at any size.
    """
    if microseconds and not isinstance(microseconds[0], (int, float)):
        exact = [int((us * _MICROSECOND).to_integral_value()) for us in microseconds]
        return np.array(exact, dtype=np.int64)
    values = np.array(microseconds, dtype=np.float64)
    whole = np.floor(values)
    decimals = np.rint((values - whole) * _MICROSECOND)
    return whole.astype(np.int64) * _MICROSECOND + decimals.astype(np.int64)


def to_int64(values: list[Any]) -> Int64s:
    """Integers as a column; unsigned ones beyond 2**63 keep their bits, so that ids still join."""
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        wrapped = [(v + (1 << 63)) % (1 << 64) - (1 << 63) for v in values]
        return np.array(wrapped, dtype=np.int64)


class Columns:
    """The columns of a trace, growing batch by batch.

    Attributes:
        n_complete: Complete events so far.
        categories: How many of them have each category, as written.
    """

    def __init__(self) -> None:
        self.n_complete = 0
        self.categories: dict[str, int] = {}
        self._names = Interned(plain_name)
        self._written = Interned(str)
        self.lanes = LaneTable()
        self._dense: dict[str, list[npt.NDArray[Any]]] = {
            key: [] for key in ("position", "category", "name", "lane", "ts_ns", "dur_ns")
        }
        self._sparse: dict[str, list[tuple[npt.NDArray[Any], Int64s]]] = {k: [] for k in _SPARSE}
        self._memory: dict[str, list[npt.NDArray[Any]]] = {
            key: [] for key in ("position", "lane", "ts_ns", *_MEMORY)
        }

    def add_complete(self, events: list[Any], first: int, at: list[int]) -> None:
        """Add complete events.

        Args:
            events: The events.
            first: Place in ``traceEvents`` at which their batch begins.
            at: Their places in the batch.
        """
        if not events:
            return
        codes = self._category_codes(events)
        self._dense["position"].append(np.array(at, dtype=np.int32) + np.int32(first))
        self._dense["category"].append(codes)
        self._dense["name"].append(_numbers(self._names, map(_NAME, events), len(events)))
        self._dense["lane"].append(self._lane_column(events))
        self._dense["ts_ns"].append(to_ns(list(map(_START, events))))
        self._dense["dur_ns"].append(to_ns(list(map(_LENGTH, events))))
        for category, wanted in _WANTED.items():
            local = np.flatnonzero(codes == category)
            if len(local):
                found = [events[i].args or NO_ARGS for i in local.tolist()]
                self._add_sparse(wanted, local + self.n_complete, found)
        self.n_complete += len(events)

    def add_memory(self, events: list[Any], first: int, at: list[int]) -> None:
        """Add ``[memory]`` instants, likewise."""
        if not events:
            return
        self._memory["position"].append(np.array(at, dtype=np.int32) + np.int32(first))
        self._memory["lane"].append(self._lane_column(events))
        self._memory["ts_ns"].append(to_ns(list(map(_START, events))))
        for key in _MEMORY:
            get = attrgetter(f"args.{key}")
            self._memory[key].append(to_int64(list(map(get, events))))

    def tables(self) -> tuple[EventTable, MemoryTable, int]:
        """The finished tables, and the trace's start in nanoseconds on the file's own clock."""
        dense = {key: _joined(parts) for key, parts in self._dense.items()}
        memory = {key: _joined(parts) for key, parts in self._memory.items()}
        self._dense.clear()
        starts = [column.min() for column in (dense["ts_ns"], memory["ts_ns"]) if len(column)]
        base = int(min(starts, default=0))
        dense["ts_ns"] -= base
        memory["ts_ns"] -= base
        events = EventTable(
            position=_frozen(dense["position"], np.int32),
            category=_frozen(dense["category"], np.uint8),
            name=_frozen(dense["name"], np.int32),
            lane=_frozen(dense["lane"], np.int32),
            ts_ns=_frozen(dense["ts_ns"], np.int64),
            dur_ns=_frozen(dense["dur_ns"], np.int64),
            names=tuple(self._names.texts),
            lanes=self.lanes.lanes(),
            **{key: self._sparse_column(key) for key in _SPARSE},
        )
        return events, _memory_table(memory), base

    def _category_codes(self, events: list[Any]) -> npt.NDArray[np.uint8]:
        written = _numbers(self._written, map(_CATEGORY, events), len(events))
        texts = self._written.texts
        counts = np.bincount(written, minlength=len(texts)).tolist()
        for text, count in zip(texts, counts, strict=True):
            self.categories[text] = self.categories.get(text, 0) + count
        by_text = [CATEGORIES.get(text.lower(), Category.OTHER) for text in texts]
        codes = np.array(by_text, dtype=np.uint8)[written]
        if self.categories.get("", 0):
            for i in np.flatnonzero(written == self._written[""]).tolist():
                codes[i] = _category_without_name(events[i])
        return codes

    def _lane_column(self, events: list[Any]) -> npt.NDArray[np.int32]:
        return _numbers(self.lanes, map(_LANE, events), len(events))

    def _add_sparse(self, wanted: tuple[str, ...], rows: Any, found: list[Args]) -> None:  # noqa: ANN401
        """Add what some events carry. ``rows`` are their rows, shape ``(k,)``."""
        for key in wanted:
            given = list(map(attrgetter(key), found))
            if key in _TEXT:
                names = self._names
                given = [names[text] if text else MISSING for text in given]
            elif key == "python_parent":
                given = [MISSING if parent is None else parent for parent in given]
            values = to_int64(given)
            has = values != MISSING
            if key == "external_id" and not has.all():
                old = to_int64([a.external_id_before_1_11 for a in found])
                values, has = np.where(has, values, old), has | (old != MISSING)
            if has.any():
                self._sparse[key].append((rows[has].astype(np.int32), values[has]))

    def _sparse_column(self, key: str) -> SparseColumn:
        parts = self._sparse.pop(key)
        if not parts:
            return SparseColumn(np.zeros(0, np.int32), np.zeros(0, np.int64))
        rows = np.concatenate([rows for rows, _ in parts])
        values = np.concatenate([values for _, values in parts])
        order = np.argsort(rows, kind="stable")
        small = values.min() > np.iinfo(np.int32).min and values.max() <= np.iinfo(np.int32).max
        return SparseColumn(
            _frozen(rows[order], np.int32), _frozen(values[order], np.int32 if small else np.int64)
        )


def _category_without_name(event: Any) -> int:  # noqa: ANN401  (a struct of one of two kinds)
    """The category of an event that has none: the autograd profiler's arrays tell by process.

    Source: ``torch/autograd/profiler_util.py`` (``EventList.export_chrome_trace``), which names
    the process ``CPU functions`` or, for device work, ``CUDA functions``.
    """
    process = str(event.pid)
    if process == "CPU functions":
        return Category.OP
    return Category.KERNEL if process == "CUDA functions" else Category.OTHER


def _numbers(
    known: Interned | LaneTable, things: Iterator[Any], count: int
) -> npt.NDArray[np.int32]:
    """The number of each thing, new ones numbered on the way. Shape ``(count,)``."""
    return np.fromiter(map(known.__getitem__, things), dtype=np.int32, count=count)


def _joined(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _frozen(column: npt.NDArray[Any], dtype: type[np.generic]) -> npt.NDArray[Any]:
    column = column.astype(dtype, copy=False)
    column.flags.writeable = False
    return column


def _or(column: npt.NDArray[Any], default: int) -> npt.NDArray[Any]:
    return np.where(column == MISSING, default, column)


def _memory_table(columns: dict[str, npt.NDArray[Any]]) -> MemoryTable:
    order = np.argsort(columns["ts_ns"], kind="stable")
    ordered = {key: column[order] for key, column in columns.items()}
    return MemoryTable(
        position=_frozen(ordered["position"], np.int32),
        lane=_frozen(ordered["lane"], np.int32),
        ts_ns=_frozen(ordered["ts_ns"], np.int64),
        n_bytes=_frozen(ordered["memory_bytes"], np.int64),
        address=_frozen(ordered["memory_address"], np.int64),
        device_type=_frozen(_or(ordered["memory_device_type"], _HOST_TYPE), np.int32),
        device=_frozen(_or(ordered["memory_device"], _HOST_DEVICE), np.int32),
        total_allocated=_frozen(ordered["total_allocated"], np.int64),
        total_reserved=_frozen(ordered["total_reserved"], np.int64),
    )
