"""One batch of events as columns: what can be worked out without knowing the others."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from profkit.model.events import MISSING, Category, Float64s, Int32s, Int64s
from profkit.model.torch_names import MEMORY as MEMORY_EVENT
from profkit.readers.kineto.interning import CATEGORIES, Interned, LaneTable, plain_name, plain_text
from profkit.readers.kineto.schema import (
    NO_ARGS,
    Args,
    Begin,
    Complete,
    Edge,
    End,
    ExactBegin,
    ExactComplete,
    ExactEnd,
    Instant,
    Naming,
)

_HOST: Final = ("external_id", "sequence", "forward_thread", "call_stack")
_CALL: Final = ("correlation", "external_id")
_WORK: Final = (
    "correlation", "external_id", "device", "stream", "n_bytes", "collective",
)  # fmt: skip
_FILL: Final = ("blocks_per_sm", "occupancy_percent")

WANTED: Final = {
    Category.OP: _HOST,
    Category.ANNOTATION: _HOST,
    Category.RUNTIME: _CALL,
    Category.DRIVER: _CALL,
    Category.KERNEL: (*_WORK, *_FILL),
    Category.MEMCPY: _WORK,
    Category.MEMSET: _WORK,
}
"""The columns that the events of a category can have."""

SPARSE: Final = tuple(dict.fromkeys((*_HOST, *_WORK, *_FILL)))
NAMES: Final = frozenset({"call_stack", "collective"})
"""Those of them that are numbers of names."""
MEMORY: Final = (
    "memory_bytes", "memory_address", "memory_device_type", "memory_device", "total_allocated",
    "total_reserved",
)  # fmt: skip
_NO_NUMBER: Final = -1
_MICROSECOND: Final = 1000
_EXACT_MICROSECOND: Final = Decimal(_MICROSECOND)
_NAME: Final = attrgetter("name")
_CATEGORY: Final = attrgetter("cat")
_LANE: Final = attrgetter("pid", "tid")
_START: Final = attrgetter("ts")
_LENGTH: Final = attrgetter("dur")
_SMALL: Final = np.iinfo(np.int32)

Columns = dict[str, npt.NDArray[Any]]
"""Columns of equal length by name."""


@dataclass
class Batch:
    """The columns of one batch. Kinds of events that it does not hold have no columns at all.

    Attributes:
        n_events: Entries, of every kind.
        n_skipped: Those that are no events.
        complete: Of complete events: ``position`` in the batch, ``category``, numbers of ``name``
            and ``lane``, ``ts_ns`` on the file's own clock, ``dur_ns``.
        sparse: By column, the rows of ``complete`` that have a value, and the values.
        memory: Of ``[memory]`` events: ``position``, ``lane``, ``ts_ns``, and :data:`MEMORY`.
        edges: Of begin and end events (``B``, ``E``): ``position``, ``category``, ``name``,
            ``lane``, ``ts_ns``, ``begins``, and :data:`SPARSE`, :data:`MISSING` where there is
            no such value.
    """

    n_events: int = 0
    n_skipped: int = 0
    complete: Columns = field(default_factory=dict)
    sparse: dict[str, tuple[Int32s, npt.NDArray[Any]]] = field(default_factory=dict)
    memory: Columns = field(default_factory=dict)
    edges: Columns = field(default_factory=dict)

    @property
    def n_complete(self) -> int:
        """How many complete events it holds."""
        return len(self.complete.get("position", ()))


def to_ns(microseconds: list[Any]) -> Int64s:
    """Microseconds as integer nanoseconds, exactly.

    Floats are split before they are scaled: up to 2**43 µs they hold three decimals, and above
    that whole microseconds. ``Decimal`` values are exact at any size. What is no time at all (not
    a number, beyond the years that nanoseconds count) becomes :data:`MISSING`.
    """
    if microseconds and not isinstance(microseconds[0], (int, float)):
        return _exact_times_ns(microseconds)
    values = np.array(microseconds, dtype=np.float64)
    sane = np.abs(values) < _LONGEST_US
    values = np.where(sane, values, 0.0)
    whole = np.floor(values)
    decimals = np.rint((values - whole) * _MICROSECOND)
    times = whole.astype(np.int64) * _MICROSECOND + decimals.astype(np.int64)
    return np.where(sane, times, MISSING)


_LONGEST_US: Final = 4.6e15
"""Half of what an integer of nanoseconds counts, so that a start and a length can be added."""


def _exact_times_ns(microseconds: list[Any]) -> Int64s:
    """Decimals as integer nanoseconds: all at once where all are times, else one by one."""
    try:
        scaled = map(_EXACT_MICROSECOND.__mul__, microseconds)
        times = np.array(list(map(int, map(Decimal.to_integral_value, scaled))), dtype=np.int64)
    except (ArithmeticError, TypeError, ValueError):
        pass
    else:
        if (np.abs(times) < _LONGEST_US * _MICROSECOND).all():
            return times
    return np.array([_exact_ns(us) for us in microseconds], dtype=np.int64)


def _exact_ns(us: Any) -> int:  # noqa: ANN401  (a Decimal, or None)
    if isinstance(us, (int, float)):
        us = Decimal(us)  # of a batch that was read event by event, each as well as it could be
    if us is None or not us.is_finite() or abs(us) >= _LONGEST_US:
        return MISSING
    return int((us * _MICROSECOND).to_integral_value())


def to_int64(values: list[Any]) -> Int64s:
    """Integers as a column; unsigned ones beyond 2**63 keep their bits, so that ids still join."""
    try:
        # Twice as quick as numpy.array, which looks at every value before it takes the first.
        return np.fromiter(values, dtype=np.int64, count=len(values))
    except OverflowError:
        wrapped = [(v + (1 << 63)) % (1 << 64) - (1 << 63) for v in values]
        return np.array(wrapped, dtype=np.int64)


_MOVES: Final = {"copyBuffer": Category.MEMCPY, "fillBuffer": Category.MEMSET}
"""Source: ``rocclr/device/rocm/rocblit.cpp``: HIP copies and fills by kernels of its own where no
engine does it. From ROCm 7.1 on the profiler shows these kernels."""


class Vocabulary:
    """Every name, category and lane that was met, by number.

    Attributes:
        names: Names of events, call stacks, collectives.
        written: Categories as written.
        category_counts: How many complete events have each of them.
        lanes: Lanes.
    """

    def __init__(self) -> None:
        self.names = Interned(plain_name)
        self.written = Interned(plain_text)
        self.category_counts: dict[str, int] = {}
        self.lanes = LaneTable()
        self._moves: dict[int, Category] = {}
        self._n_looked_at = 0

    def tell_moves(self, names: Int32s, category: npt.NDArray[np.uint8]) -> None:
        """Make ROCm's own kernels that copy and fill what they are: copies and fills.

        Args:
            names: The number of each event's name. Shape ``(n,)``.
            category: Their categories, changed in place.
        """
        texts = self.names.texts
        for number in range(self._n_looked_at, len(texts)):
            if texts[number].startswith("__amd_rocclr_"):
                move = next((kind for part, kind in _MOVES.items() if part in texts[number]), None)
                if move is not None:
                    self._moves[number] = move
        self._n_looked_at = len(texts)
        for number, kind in self._moves.items():
            category[(names == number) & (category == Category.KERNEL)] = kind

    def categories(self, events: list[Any]) -> npt.NDArray[np.uint8]:
        """The :class:`Category` of each event. Shape ``(n,)``."""
        written = _numbers(self.written, map(_CATEGORY, events), len(events))
        texts = self.written.texts
        counts = np.bincount(written, minlength=len(texts)).tolist()
        for text, count in zip(texts, counts, strict=True):
            self.category_counts[text] = self.category_counts.get(text, 0) + count
        by_text = [CATEGORIES.get(text.lower(), Category.OTHER) for text in texts]
        codes = np.array(by_text, dtype=np.uint8)[written]
        for text, tell in _TOLD_BY_EVENT.items():
            for i in np.flatnonzero(written == self.written.get(text, _NO_NUMBER)).tolist():
                codes[i] = tell(events[i])
        return codes

    def name_lanes(self, events: list[Any]) -> None:
        """Remember what metadata events call processes and threads."""
        for event in events:
            name = str(event.args.name) if event.args else ""
            if event.name == "process_name":
                self.lanes.name_process(event.pid, name)
            elif event.name == "thread_name":
                self.lanes.name_thread(event.pid, event.tid, name)


def _category_by_process(event: Any) -> int:  # noqa: ANN401  (a struct of one of several kinds)
    """The category of an event that has none: the autograd profiler's arrays tell by process.

    Source: ``torch/autograd/profiler_util.py`` (``EventList.export_chrome_trace``), which names
    the process ``CPU functions`` or, for device work, ``CUDA functions``.
    """
    process = str(event.pid)
    if process == "CPU functions":
        return Category.OP
    return Category.KERNEL if process == "CUDA functions" else Category.OTHER


def _category_by_waiter(event: Any) -> int:  # noqa: ANN401  (a struct of one of several kinds)
    """The category of a wait on an XPU: the host's are calls, a barrier on the device is none.

    Source: ``libkineto/src/plugin/xpupti/XpuptiActivityHandlers.cpp``
    (``handleSynchronizationActivity``): named after the Level Zero call, with its ``Type``.
    """
    kind = str((event.args or NO_ARGS).wait_type)
    return Category.DRIVER if kind.startswith("HOST_") else Category.DEVICE_SYNC


_TOLD_BY_EVENT: Final = {"": _category_by_process, "xpu_sync": _category_by_waiter}
"""Categories as written that do not tell by themselves what an event is."""


def to_columns(events: list[Any], words: Vocabulary) -> Batch:
    """Turn decoded events into columns.

    Args:
        events: Structs of :mod:`profkit.readers.kineto.schema`; None stands for what is no event.
        words: The vocabulary, which grows.
    """
    kinds = list(map(type, events))
    batch = Batch(n_events=len(events), n_skipped=kinds.count(type(None)))
    present = set(kinds)
    complete = ExactComplete if ExactComplete in present else Complete
    allocations: list[int] = []
    if complete in present:
        at = [i for i, kind in enumerate(kinds) if kind is complete]
        allocations += _add_complete(batch, [events[i] for i in at], at, words)
    instants = {kind for kind in present if issubclass(kind, Instant)}
    if instants:
        at = [i for i, kind in enumerate(kinds) if kind in instants]
        allocations += [i for i in at if _is_allocation(events[i])]
    if allocations:
        allocations.sort()
        _add_memory(batch, [events[i] for i in allocations], allocations, words)
    if present & {Begin, End, ExactBegin, ExactEnd}:
        at = [i for i, event in enumerate(events) if isinstance(event, Edge)]
        _add_edges(batch, [events[i] for i in at], at, words)
    if Naming in present:
        words.name_lanes([event for event in events if type(event) is Naming])
    return batch


def _is_allocation(event: Any) -> bool:  # noqa: ANN401  (an instant or a complete event)
    return event.name == MEMORY_EVENT and (event.args or NO_ARGS).memory_bytes != MISSING


def _add_complete(batch: Batch, events: list[Any], at: list[int], words: Vocabulary) -> list[int]:
    """Add complete events, all but allocations.

    torch's Python exporter (``use_python_export``) writes an allocation as a complete event that
    lasts to the end of the trace. It is a moment all the same.

    Returns:
        Places of the allocations, which are not added.
    """
    names = _numbers(words.names, map(_NAME, events), len(events))
    named = np.flatnonzero(names == words.names.get(MEMORY_EVENT, _NO_NUMBER)).tolist()
    allocations = {i for i in named if _is_allocation(events[i])}
    if allocations:
        rest = [i for i in range(len(events)) if i not in allocations]
        _add_complete(batch, [events[i] for i in rest], [at[i] for i in rest], words)
        return [at[i] for i in allocations]
    category = words.categories(events)
    words.tell_moves(names, category)
    batch.complete = {
        **_placed(events, at, words),
        "category": category,
        "name": names,
        "dur_ns": to_ns(list(map(_LENGTH, events))),
    }
    parts: dict[str, list[tuple[Int32s, npt.NDArray[Any]]]] = {}
    for kind, wanted in WANTED.items():
        rows = np.flatnonzero(category == kind).astype(np.int32)
        if len(rows):
            found = [events[i].args or NO_ARGS for i in rows.tolist()]
            for key in wanted:
                values = _values(key, found, words)
                has = values != MISSING
                if has.any():
                    parts.setdefault(key, []).append((rows[has], values[has]))
    for key, listed in parts.items():
        rows = np.concatenate([rows for rows, _ in listed])
        values = np.concatenate([values for _, values in listed])
        order = np.argsort(rows, kind="stable")
        batch.sparse[key] = (rows[order], _smaller(values[order]))
    return []


def _smaller(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values in 32 bits where they fit: ids mostly do, and there are many of them."""
    if values.dtype != np.int64:
        return values
    fits = values.min() > _SMALL.min and values.max() <= _SMALL.max
    return values.astype(np.int32) if fits else values


def _values(key: str, found: list[Args], words: Vocabulary) -> npt.NDArray[Any]:
    """What some events carry under one key, or :data:`MISSING`. Shape ``(k,)``."""
    given = list(map(attrgetter(key), found))
    if key in _FILL:
        return _figures(key, given, found)
    if key in NAMES:
        names = words.names
        given = [names[text] if text else MISSING for text in given]
    values = to_int64(given)
    if key == "external_id" and (values == MISSING).any():
        old = to_int64([args.external_id_before_1_11 for args in found])
        return np.where(values == MISSING, old, values)
    if key == "stream" and (values == MISSING).any():
        queues = to_int64([args.sycl_queue for args in found])
        return np.where(values == MISSING, queues, values)
    return values


def _figures(key: str, given: list[Any], found: list[Args]) -> Float64s:
    """How full kernels make a device, or :data:`MISSING` where the profiler could not tell.

    It has no figure of blocks where it does not know the device (``inf``, -1). It works the
    occupancy out for 48 KiB of shared memory a block: of a kernel that asked for more it says 0,
    whatever its size. A 0 that the kernel's own warps rule out is no figure either.

    Source: ``libkineto/src/DeviceProperties.cpp`` (``kernelOccupancy``, whose
    ``maxDynamicSharedSizeBytes`` is 0).
    """
    values = np.fromiter(given, dtype=np.float64, count=len(given))
    known = np.isfinite(values) & (values >= 0)
    if key == "occupancy_percent":
        zeros = np.flatnonzero(values == 0)
        warps = np.array([found[i].warps_per_sm for i in zeros.tolist()], dtype=np.float64)
        known[zeros] = ~(warps > _ROUNDED_TO_0)
    return np.where(known, values, float(MISSING))


_ROUNDED_TO_0: Final = 0.32
"""Half a hundredth of the 64 warps that the largest multiprocessors hold; more is written as 1."""


def _add_memory(batch: Batch, events: list[Any], at: list[int], words: Vocabulary) -> None:
    batch.memory = _placed(events, at, words)
    for key in MEMORY:
        batch.memory[key] = to_int64(list(map(attrgetter(f"args.{key}"), events)))


def _add_edges(batch: Batch, events: list[Any], at: list[int], words: Vocabulary) -> None:
    category = words.categories(events)
    names = _numbers(words.names, map(_NAME, events), len(events))
    words.tell_moves(names, category)
    found = [event.args or NO_ARGS for event in events]
    batch.edges = {
        **_placed(events, at, words),
        "category": category,
        "name": names,
        "begins": np.array([event.begins for event in events], dtype=np.bool_),
        **{key: _values(key, found, words) for key in SPARSE},
    }


def _placed(events: list[Any], at: list[int], words: Vocabulary) -> Columns:
    """What events of every kind have."""
    return {
        "position": np.array(at, dtype=np.int32),
        "lane": _numbers(words.lanes, map(_LANE, events), len(events)),
        "ts_ns": to_ns(list(map(_START, events))),
    }


def _numbers(known: Interned | LaneTable, things: Iterator[Any], count: int) -> Int32s:
    """The number of each thing, new ones numbered on the way. Shape ``(count,)``."""
    return np.fromiter(map(known.__getitem__, things), dtype=np.int32, count=count)
