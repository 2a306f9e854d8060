"""Converts one batch of events to columns, as far as that needs no other batch."""

from collections.abc import Iterator
from dataclasses import field
from decimal import Decimal
from itertools import islice
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from profkit.dataclass import dataclass
from profkit.model.events import MISSING, RECORD_FUNCTIONS, Category, Float64s, Int32s, Int64s, Rows
from profkit.model.torch_names import MEMORY as MEMORY_EVENT
from profkit.readers.kineto.categories import CATEGORIES
from profkit.readers.kineto.event_categories import AMBIGUOUS_CATEGORIES, category_by_name
from profkit.readers.kineto.interning import (
    InputTable,
    InternTable,
    LaneTable,
    RawTable,
    plain_name,
    plain_text,
)
from profkit.readers.kineto.schema import (
    NO_ARGS,
    NO_COLLECTIVE,
    OF_COLLECTIVES,
    RAW_TEXTS,
    TEXTS,
    BeginEnd,
    Complete,
    EventArgs,
    Instant,
    Naming,
)

_HOST: Final = ("external_id", "sequence", "forward_thread", "call_stack")
_INPUTS: Final = ("input_dims", "input_types", "concrete_inputs")
_CALL: Final = ("correlation", "external_id")
_DEVICE: Final = ("correlation", "external_id", "device", "stream", "n_bytes")
_PEERS: Final = ("from_device", "to_device")
_LAUNCH_SHAPE: Final = ("grid", "block")
FIGURES: Final = ("blocks_per_sm", "occupancy_percent")

COLUMNS_OF_CATEGORY: Final = {
    Category.OP: (*_HOST, *_INPUTS),
    Category.ANNOTATION: _HOST,
    Category.RUNTIME: _CALL,
    Category.DRIVER: _CALL,
    Category.KERNEL: (*_DEVICE, *_LAUNCH_SHAPE, *FIGURES),
    Category.MEMCPY: (*_DEVICE, *_PEERS),
    Category.MEMSET: _DEVICE,
}
"""The sparse columns that events of a category can have, besides those of collectives."""

_RUN_COLLECTIVES: Final = (Category.OP, Category.KERNEL)
SPARSE: Final = tuple(
    dict.fromkeys((*_HOST, *_INPUTS, *_DEVICE, *_PEERS, *_LAUNCH_SHAPE, *FIGURES, *OF_COLLECTIVES))
)
INTERNED: Final = TEXTS | RAW_TEXTS
"""The sparse columns whose values are numbers of interned names."""
MEMORY: Final = {
    "n_bytes": "memory_bytes",
    "address": "memory_address",
    "device_type": "memory_device_type",
    "device": "memory_device",
    "total_allocated": "total_allocated",
    "total_reserved": "total_reserved",
}
"""The arguments of ``[memory]`` events by column."""
_NO_NUMBER: Final = -1
_MICROSECOND: Final = 1000
_EXACT_MICROSECOND: Final = Decimal(_MICROSECOND)
_MAX_US: Final = 4.6e15
"""Half the range of int64 nanoseconds, so that a start and a duration can be added."""
_NAME: Final = attrgetter("name")
_CATEGORY: Final = attrgetter("cat")
_LANE: Final = attrgetter("pid", "tid")
_START: Final = attrgetter("ts")
_DURATION: Final = attrgetter("dur")
_ARGS: Final = attrgetter("args")
_FINISHED: Final = attrgetter("finished")
_INPUT_TEXTS: Final = attrgetter(*_INPUTS)
_N_SAMPLED: Final = 16
"""Operators that tell whether a recording has their inputs: ``record_shapes`` holds for all."""
_INT32: Final = np.iinfo(np.int32)
_UNFINISHED: Final = frozenset({"false", "0"})
"""Values of ``finished``, as text in lower case, of events that torch closed when it stopped.

Source: ``finished_`` in ``torch/csrc/profiler/collection.h``, and traces written by torch 2.13.
Allocations, which are instants, have the argument as well. Python calls that are open at the stop
do not have it: they end where the recording ends."""
_ROUNDS_TO_0: Final = 0.32
"""0.5% of the 64 warps of the largest multiprocessors; an occupancy above it is written as 1."""
_OF_CUPTI: Final = ("correlation", "device")
"""Columns that CUPTI's own field names fill as well. Programs that write them leave the device out,
and the process is not a device."""
_ROCM_COPY_KERNELS: Final = {"copyBuffer": Category.MEMCPY, "fillBuffer": Category.MEMSET}
"""Source: ``rocclr/device/rocm/rocblit.cpp``: HIP copies and fills with kernels of its own where no
DMA engine does it. From ROCm 7.1 on the profiler reports these kernels."""

Columns = dict[str, npt.NDArray[Any]]
"""Columns of equal length by name."""
_Parts = dict[str, list[tuple[Int32s, npt.NDArray[Any]]]]
"""By sparse column, the rows that have a value, and the values, for one category after another."""


@dataclass
class Batch:
    """The columns of one batch. A kind of event that does not occur in it has no columns.

    Attributes:
        n_events: Entries of every kind.
        n_skipped: Entries that are not events.
        complete: For complete events: ``position`` in the batch, ``category``, interned ``name``
            and ``lane``, ``ts_ns`` on the file's clock, ``dur_ns``.
        sparse: By column, the rows of ``complete`` that have a value, and the values.
        memory: For ``[memory]`` events: ``position``, ``lane``, ``ts_ns``, and :data:`MEMORY`.
        begin_end: For begin and end events (``B``, ``E``): ``position``, ``category``, ``name``,
            ``lane``, ``ts_ns``, ``begins``, and :data:`SPARSE` with :data:`MISSING` for no value.
    """

    n_events: int = 0
    n_skipped: int = 0
    complete: Columns = field(default_factory=dict)
    sparse: dict[str, tuple[Int32s, npt.NDArray[Any]]] = field(default_factory=dict)
    memory: Columns = field(default_factory=dict)
    begin_end: Columns = field(default_factory=dict)

    @property
    def n_complete(self) -> int:
        """Return the number of complete events."""
        return len(self.complete.get("position", ()))


def to_ns(microseconds: list[Any]) -> Int64s:
    """Convert microseconds to integer nanoseconds exactly.

    Floats are split before they are scaled: they represent three decimals up to 2**43 µs, and
    whole microseconds above. ``Decimal`` values are exact at any size. NaN, infinity and values
    outside the range of int64 nanoseconds become :data:`MISSING`.
    """
    if microseconds and not isinstance(microseconds[0], (int, float)):
        return _exact_times_ns(microseconds)
    values = np.array(microseconds, dtype=np.float64)
    is_valid = np.abs(values) < _MAX_US
    values = np.where(is_valid, values, 0.0)

    whole = np.floor(values)
    decimals = np.rint((values - whole) * _MICROSECOND)
    times = whole.astype(np.int64) * _MICROSECOND + decimals.astype(np.int64)
    return np.where(is_valid, times, MISSING)


def _exact_times_ns(microseconds: list[Any]) -> Int64s:
    """Convert decimals in one pass if all are valid, else one by one."""
    try:
        scaled = map(_EXACT_MICROSECOND.__mul__, microseconds)
        times = np.array(list(map(int, map(Decimal.to_integral_value, scaled))), dtype=np.int64)
    except (ArithmeticError, TypeError, ValueError):
        pass
    else:
        if (np.abs(times) < _MAX_US * _MICROSECOND).all():
            return times
    return np.array([_exact_ns(us) for us in microseconds], dtype=np.int64)


def _exact_ns(us: Any) -> int:  # noqa: ANN401  (a Decimal, or None)
    if isinstance(us, (int, float)):
        us = Decimal(us)  # from a batch that was salvaged event by event
    if us is None or not us.is_finite() or abs(us) >= _MAX_US:
        return MISSING
    return int((us * _MICROSECOND).to_integral_value())


def to_int64(values: list[Any]) -> Int64s:
    """Convert integers to a column; unsigned ones above 2**63 wrap around: ids still join."""
    try:
        # Twice as fast as numpy.array, which inspects all values for a common type first.
        return np.fromiter(values, dtype=np.int64, count=len(values))
    except OverflowError:
        wrapped = [(v + (1 << 63)) % (1 << 64) - (1 << 63) for v in values]
        return np.array(wrapped, dtype=np.int64)


class InternTables:
    """Numbers of all names, categories and lanes so far.

    Attributes:
        names: Names of events, call stacks, collectives, inputs.
        raw: The numbers of JSON texts among ``names``; an empty text has no number.
        inputs: The numbers of all inputs of an operator at once.
        written_categories: Categories as the file spells them.
        category_counts: Number of complete events by written category.
    """

    def __init__(self) -> None:
        self.names = InternTable(plain_name)
        self.raw = RawTable(self.names)
        self.inputs = InputTable(self.raw)
        self.written_categories = InternTable(plain_text)
        self.category_counts: dict[str, int] = {}
        self.lanes = LaneTable()
        self._copy_kernels: dict[int, Category] = {}
        self._n_checked = 0

    def recategorize_copy_kernels(self, names: Int32s, category: npt.NDArray[np.uint8]) -> None:
        """Categorize ROCm's internal copy and fill kernels, by name, as copies and fills in place.

        Both arrays have shape ``(n,)``.
        """
        texts = self.names.texts
        for number in range(self._n_checked, len(texts)):
            if texts[number].startswith("__amd_rocclr_"):
                for part, kind in _ROCM_COPY_KERNELS.items():
                    if part in texts[number]:
                        self._copy_kernels[number] = kind
        self._n_checked = len(texts)

        for number, kind in self._copy_kernels.items():
            category[(names == number) & (category == Category.KERNEL)] = kind

    def categorize(self, events: list[Any]) -> npt.NDArray[np.uint8]:
        """Return the :class:`Category` of each event, shape ``(n,)``, and count the categories."""
        written = _intern(self.written_categories, map(_CATEGORY, events), len(events))
        texts = self.written_categories.texts
        counts = np.bincount(written, minlength=len(texts)).tolist()
        for text, count in zip(texts, counts, strict=True):
            self.category_counts[text] = self.category_counts.get(text, 0) + count

        # Most categories are decided once per text, not per event.
        by_text = [CATEGORIES.get(text.lower(), Category.OTHER) for text in texts]
        category = np.array(by_text, dtype=np.uint8)[written]
        for number, text in enumerate(texts):
            by_event = AMBIGUOUS_CATEGORIES.get(text.lower())
            if by_event is None and by_text[number] == Category.OTHER:
                by_event = category_by_name
            if by_event is not None:
                for i in np.flatnonzero(written == number).tolist():
                    category[i] = by_event(events[i])
        return category


_KINDS: Final[tuple[type, ...]] = (Instant, Complete, BeginEnd, Naming)


def to_columns(events: list[Any], interned: InternTables) -> Batch:
    """Convert decoded events to columns.

    Args:
        events: Structs of :mod:`profkit.readers.kineto.schema`, or None for entries that are not
            events.
        interned: Extended with new names, categories and lanes.
    """
    kinds = list(map(type, events))
    batch = Batch(n_events=len(events), n_skipped=kinds.count(type(None)))
    positions = _find_positions(kinds)

    allocations = _find_allocations(events, positions[Instant].tolist())
    if len(at := positions[Complete]):
        allocations += _add_complete(batch, _select(events, at), at, interned)
    if allocations:
        at = np.sort(np.array(allocations, dtype=np.int32))
        _add_memory(batch, _select(events, at), at, interned)
    if len(at := positions[BeginEnd]):
        _add_begin_end(batch, _select(events, at), at, interned)

    interned.lanes.name_lanes(_select(events, positions[Naming]))
    return batch


def _find_positions(kinds: list[type]) -> dict[type, Int32s]:
    """Find the positions of the events of each of :data:`_KINDS`, which have subclasses."""
    number = {
        kind: next((i for i, base in enumerate(_KINDS) if issubclass(kind, base)), len(_KINDS))
        for kind in set(kinds)
    }
    numbers = np.fromiter(map(number.__getitem__, kinds), dtype=np.uint8, count=len(kinds))
    return {kind: np.flatnonzero(numbers == i).astype(np.int32) for i, kind in enumerate(_KINDS)}


def _select(events: list[Any], places: Int32s | Rows) -> list[Any]:
    """Return the events, or their arguments, at some ascending places."""
    return events if len(places) == len(events) else [events[i] for i in places.tolist()]


def _read_args(events: list[Any], places: Int32s | Rows) -> list[EventArgs]:
    """Return the arguments of the events at some ascending places."""
    return [args or NO_ARGS for args in map(_ARGS, _select(events, places))]


def _find_allocations(events: list[Any], places: list[int]) -> list[int]:
    """Find the allocations among the instants or complete events at some places."""
    named = [i for i in places if events[i].name == MEMORY_EVENT]
    return [i for i in named if (events[i].args or NO_ARGS).memory_bytes != MISSING]


def _add_complete(batch: Batch, events: list[Any], at: Int32s, interned: InternTables) -> list[int]:
    """Add complete events, except allocations.

    torch's Python exporter (``use_python_export``) writes an allocation as a complete event that
    lasts to the end of the trace; it is read as an instant.

    Returns:
        Positions of the allocations, which are not added.
    """
    names = _intern(interned.names, map(_NAME, events), len(events))
    memory_name = interned.names.get(MEMORY_EVENT, _NO_NUMBER)
    candidates = np.flatnonzero(names == memory_name).tolist()
    allocations = np.array(_find_allocations(events, candidates), dtype=np.int32)
    if len(allocations):
        complete = np.delete(np.arange(len(events)), allocations)
        _add_complete(batch, _select(events, complete), at[complete], interned)
        return [int(position) for position in at[allocations]]

    category = interned.categorize(events)
    interned.recategorize_copy_kernels(names, category)
    length_ns = to_ns(list(map(_DURATION, events)))
    batch.complete = {
        **_read_common(events, at, interned),
        "category": category,
        "name": names,
        "dur_ns": length_ns,
    }

    # Category by category, since an operator has none of the arguments of a kernel.
    parts: _Parts = {}
    for kind, keys in COLUMNS_OF_CATEGORY.items():
        rows = np.flatnonzero(category == kind).astype(np.int32)
        if not len(rows):
            continue
        args = _read_args(events, rows)
        if kind in RECORD_FUNCTIONS and (is_unfinished := _find_unfinished(args)).any():
            unfinished = rows[is_unfinished]
            category[unfinished], length_ns[unfinished] = Category.UNFINISHED, 0
            rows, args = rows[~is_unfinished], _select(args, np.flatnonzero(~is_unfinished))
        for key, values in _read_columns(keys, args, interned):
            _add_present(parts, key, rows, values)
        if events[0].keeps_collectives and kind in _RUN_COLLECTIVES:
            collectives = [i for i, arg in enumerate(args) if arg.collective]
            rows, args = rows[collectives], [args[i] for i in collectives]
            for key, values in _read_columns(OF_COLLECTIVES, args, interned):
                _add_present(parts, key, rows, values)

    for key, column in parts.items():
        rows = np.concatenate([rows for rows, _ in column])
        values = np.concatenate([values for _, values in column])
        order = np.argsort(rows, kind="stable")
        batch.sparse[key] = (rows[order], _narrow(values[order]))
    return []


def _find_unfinished(args: list[EventArgs]) -> npt.NDArray[np.bool_]:
    """Return whether each operator or annotation has no known end, since the stop closed it."""
    marks = list(map(_FINISHED, args))
    # Nearly all of them have finished, which takes no look at each.
    if marks.count(True) == len(marks):
        return np.zeros(len(marks), dtype=np.bool_)
    is_unfinished = [mark is not True and str(mark).lower() in _UNFINISHED for mark in marks]
    return np.array(is_unfinished, dtype=np.bool_)


def _read_columns(
    keys: tuple[str, ...], args: list[EventArgs], interned: InternTables
) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield sparse columns by name, each with :data:`MISSING` where an event has no value."""
    if keys[-len(_INPUTS) :] == _INPUTS and _have_inputs(args):
        keys = keys[: -len(_INPUTS)]
        yield from zip(_INPUTS, _number_inputs(args, interned), strict=True)
    for key in keys:
        yield key, _read_values(key, args, interned)


def _add_present(parts: _Parts, key: str, rows: Int32s, values: npt.NDArray[Any]) -> None:
    """Add the values of one sparse column for some rows, as far as they have any."""
    has = values != MISSING
    if has.any():
        parts.setdefault(key, []).append((rows[has], values[has]))


def categories_with(key: str) -> list[Category]:
    """Return the categories of the events that can have a value in a sparse column."""
    if key in OF_COLLECTIVES:
        return list(_RUN_COLLECTIVES)
    return [category for category, keys in COLUMNS_OF_CATEGORY.items() if key in keys]


def _narrow(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Convert values to int32 if all fit: most ids do, and there are many of them."""
    if values.dtype != np.int64:
        return values
    fits = values.min() > _INT32.min and values.max() <= _INT32.max
    return values.astype(np.int32) if fits else values


def _read_values(key: str, args: list[EventArgs], interned: InternTables) -> npt.NDArray[Any]:
    """Read one sparse column, with :data:`MISSING` where an event has no value. Shape ``(k,)``."""
    written = list(map(attrgetter(key), args))
    if key in FIGURES:
        return _check_occupancy(key, written, args)
    if key in RAW_TEXTS:
        return _number_raw_texts(written, interned)
    if key in INTERNED:
        names, absent = interned.names, [MISSING] * len(written)
        written = [names[text] if text else MISSING for text in written] if any(written) else absent
    values = to_int64(written)

    # Other versions and programs write the same value under another key.
    if key == "external_id" and (values == MISSING).any():
        external_id = to_int64([arg.external_id_before_1_11 for arg in args])
        return np.where(values == MISSING, external_id, values)
    if key in _OF_CUPTI and (values == MISSING).any():
        correlation = to_int64([arg.cupti_correlation for arg in args])
        is_cupti = correlation != MISSING
        cupti_values = correlation if key == "correlation" else np.where(is_cupti, 0, MISSING)
        values = np.where(values == MISSING, cupti_values, values)
    if key == "device":
        # No device has a number out of this range, so it is not known which device it was.
        return np.where((values < 0) | (values > _INT32.max), MISSING, values)
    if key == "stream" and (values == MISSING).any():
        queues = to_int64([arg.sycl_queue for arg in args])
        return np.where(values == MISSING, queues, values)
    return values


def _number_raw_texts(texts: list[Any], interned: InternTables) -> Int64s:
    """Return the numbers of JSON texts, :data:`MISSING` for empty ones. Shape ``(k,)``."""
    # No JSON text has a NUL: this copies the texts in half the time of ``map(bytes, texts)``.
    joined = b"\0".join(texts)
    if len(joined) < len(texts):
        return np.full(len(texts), MISSING, dtype=np.int64)  # all are empty
    numbers = map(interned.raw.__getitem__, joined.split(b"\0"))
    return np.fromiter(numbers, dtype=np.int64, count=len(texts))


def _have_inputs(args: list[EventArgs]) -> bool:
    """Return whether the first of some operators have inputs, so that most of them do."""
    return any(map(b"".join, map(_INPUT_TEXTS, islice(args, _N_SAMPLED))))


def _number_inputs(args: list[EventArgs], interned: InternTables) -> Int64s:
    """Return the numbers of all inputs of operators, a row for each of :data:`_INPUTS`.

    The inputs of an operator are looked up at once, since they repeat together in each step.
    """
    table = interned.inputs
    table.limit_size()
    texts = map(b"\0".join, map(_INPUT_TEXTS, args))
    places = np.fromiter(map(table.__getitem__, texts), dtype=np.int32, count=len(args))
    return np.array(table.numbers, dtype=np.int64)[places].T


def _check_occupancy(key: str, written: list[Any], args: list[EventArgs]) -> Float64s:
    """Return blocks per SM or achieved occupancy, :data:`MISSING` for unusable values.

    Kineto writes ``inf`` or -1 blocks where it does not know the device. It computes occupancy for
    at most 48 KiB of shared memory per block and writes 0 for a kernel that requests more; a 0
    that contradicts the kernel's number of warps is therefore missing as well.

    Source: ``libkineto/src/DeviceProperties.cpp`` (``kernelOccupancy``, whose
    ``maxDynamicSharedSizeBytes`` is 0).
    """
    values = np.fromiter(written, dtype=np.float64, count=len(written))
    is_usable = np.isfinite(values) & (values >= 0)
    if key == "occupancy_percent":
        zeros = np.flatnonzero(values == 0)
        warps = np.array([args[i].warps_per_sm for i in zeros.tolist()], dtype=np.float64)
        is_usable[zeros] = ~(warps > _ROUNDS_TO_0)
    return np.where(is_usable, values, float(MISSING))


def _add_memory(batch: Batch, events: list[Any], at: Int32s, interned: InternTables) -> None:
    batch.memory = _read_common(events, at, interned)
    args = list(map(_ARGS, events))
    for key, argument in MEMORY.items():
        batch.memory[key] = to_int64(list(map(attrgetter(argument), args)))


def _add_begin_end(batch: Batch, events: list[Any], at: Int32s, interned: InternTables) -> None:
    category = interned.categorize(events)
    names = _intern(interned.names, map(_NAME, events), len(events))
    interned.recategorize_copy_kernels(names, category)
    rows = np.flatnonzero(np.isin(category, RECORD_FUNCTIONS))
    category[rows[_find_unfinished(_read_args(events, rows))]] = Category.UNFINISHED

    # Dense columns, since the category that decides which values count may be the other event's.
    keeps_collectives = events[0].keeps_collectives
    no_args = NO_COLLECTIVE if keeps_collectives else NO_ARGS
    args = [event.args or no_args for event in events]
    keys = [key for key in SPARSE if keeps_collectives or key not in OF_COLLECTIVES]
    batch.begin_end = {
        **_read_common(events, at, interned),
        "category": category,
        "name": names,
        "begins": np.array([event.begins for event in events], dtype=np.bool_),
        **{key: _read_values(key, args, interned) for key in keys},
        **{key: np.full(len(events), MISSING) for key in SPARSE if key not in keys},
    }


def _read_common(events: list[Any], at: Int32s, interned: InternTables) -> Columns:
    """Read the columns that events of every kind have."""
    return {
        "position": at,
        "lane": _intern(interned.lanes, map(_LANE, events), len(events)),
        "ts_ns": to_ns(list(map(_START, events))),
    }


def _intern(table: InternTable | LaneTable, values: Iterator[Any], count: int) -> Int32s:
    """Return the number of each value; new values get the next number. Shape ``(count,)``."""
    return np.fromiter(map(table.__getitem__, values), dtype=np.int32, count=count)
