"""Stores traces in the cache: their columns as arrays, all other fields as plain data."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import lru_cache, partial
from typing import Any, Final, get_type_hints

import msgspec
import numpy as np

from profkit.model.events import (
    MISSING,
    Category,
    EventTable,
    Lane,
    MemoryTable,
    SparseColumn,
    are_equally_long,
    is_ascending,
    is_within,
)
from profkit.model.trace import Trace
from profkit.readers.cache import STAGE, Entry, users_cache
from profkit.readers.kineto.assemble import COMPLETE, DTYPES
from profkit.readers.kineto.batch import FIGURES, INTERNED, SPARSE
from profkit.readers.kineto.capture_info import is_valid_capture
from profkit.readers.kineto.invalid_times import MAX_NS
from profkit.readers.kineto.read import read_kineto
from profkit.readers.process_memory import garbage_collection_paused
from profkit.readers.progress import OnProgress, Stages
from profkit.readers.stored_value import NotValidError, find_valid
from profkit.readers.stream import Place

_KIND: Final = b"trace"
_NOT_PLAIN: Final = ("path", "events", "memory")
"""Fields of a trace that are not part of its plain data."""
_MEMORY: Final = "memory."
_MEMORY_COLUMNS: Final = tuple(field.name for field in fields(MemoryTable))
_ROWS: Final = ".rows"
_MAX_TIME_NS: Final = (1 << 63) // 2
"""With the longest duration added, an end is still an int64."""
_MAX_INT: Final = (1 << 63) - 1
_Limits = Mapping[str, tuple[int, int]]
"""The smallest and the largest value of columns."""


def read_trace(
    place: Place, limit_bytes: int | None = None, on_progress: OnProgress | None = None
) -> Trace:
    """Read a trace, or map its columns from the cache; arguments as for ``readers.open.load``.

    Raises:
        LoadError: It cannot be read, or is not a trace.
    """
    cache, stages = users_cache(), Stages()
    with stages.stage(STAGE):
        key = cache.key([place], _KIND)
        trace = None if key is None else find_valid(cache, key, partial(_decode, str(place)))
    if key is None:
        return read_kineto(place, limit_bytes, on_progress)

    # A cached trace that is larger than the limit is read again, so that reading it fails.
    if trace is None or trace.notes.uncompressed_bytes > (limit_bytes or _MAX_INT):
        trace = new_trace = read_kineto(place, limit_bytes, on_progress)
        cache.store(key, lambda: encode_trace(new_trace), stages)

    stages_ns = {**trace.notes.stages_ns, **stages.ns}
    return replace(trace, notes=replace(trace.notes, stages_ns=stages_ns))


def _decode(path: str, entry: Entry) -> Trace:
    with garbage_collection_paused():
        return decode_trace(entry, path)


@lru_cache(maxsize=1)
def _plain_type() -> type[msgspec.Struct]:
    """Return the type of a trace's plain data: its other fields, the events' names and lanes."""
    hints = get_type_hints(Trace)
    plain = [(field.name, hints[field.name]) for field in fields(Trace)]
    plain = [(name, hint) for name, hint in plain if name not in _NOT_PLAIN]
    return msgspec.defstruct(
        "PlainData", [("names", tuple[str, ...]), ("lanes", tuple[Lane, ...]), *plain]
    )


def encode_trace(trace: Trace) -> Entry:
    """Convert a trace to an entry of the cache.

    Raises:
        ValueError: A text cannot be encoded.
        OverflowError: An integer has more than 64 bits.
    """
    plain_type, events = _plain_type(), trace.events
    plain = {name: getattr(trace, name) for name in plain_type.__struct_fields__[2:]}
    # The times of this read are not the times of a later one from the cache.
    plain["notes"] = replace(trace.notes, stages_ns={})
    data = msgspec.msgpack.encode(plain_type(names=events.names, lanes=events.lanes, **plain))

    arrays = {name: getattr(events, name) for name in COMPLETE}
    for name in SPARSE:
        column = getattr(events, name)
        if len(column.rows):
            arrays |= {name: column.values, name + _ROWS: column.rows}
    arrays |= {_MEMORY + name: getattr(trace.memory, name) for name in _MEMORY_COLUMNS}
    return Entry(data, arrays)


def decode_trace(entry: Entry, path: str) -> Trace:
    """Convert an entry to a trace. It is input like any other, so all of it is checked.

    Raises:
        NotValidError: The entry is not a trace.
    """
    try:
        plain: Any = msgspec.msgpack.decode(entry.data, type=_plain_type())
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NotValidError from error
    names, lanes = plain.names, plain.lanes
    if plain.capture is not None and not is_valid_capture(plain.capture):
        raise NotValidError

    limits = {
        "ts_ns": (0, _MAX_TIME_NS),
        "position": (0, _MAX_INT),
        "lane": (0, len(lanes) - 1),
        "dur_ns": (0, MAX_NS),
        "name": (0, len(names) - 1),
        "category": (0, max(Category)),
    }

    # Numbers of names and lanes index their lists, and times are added: all must be in range.
    dense: dict[str, Any] = _read_columns(entry.arrays, "", COMPLETE, limits)
    memory = _read_columns(entry.arrays, _MEMORY, _MEMORY_COLUMNS, limits)
    if not is_ascending(memory["ts_ns"], 0):
        raise NotValidError

    n_rows = len(dense["ts_ns"])
    sparse: dict[str, Any] = {
        name: _read_sparse(entry.arrays, name, n_rows, len(names))
        for name in SPARSE
        if name in entry.arrays
    }
    return Trace(
        path,
        EventTable(names=names, lanes=lanes, **dense, **sparse),
        MemoryTable(**memory),
        **{name: getattr(plain, name) for name in plain.__struct_fields__[2:]},
    )


def _read_columns(
    arrays: Mapping[str, Any], prefix: str, names: Iterable[str], limits: _Limits
) -> dict[str, Any]:
    """Read the columns of a table.

    Raises:
        NotValidError: One is missing, or has another type or length, or a value out of its range.
    """
    columns: dict[str, Any] = {name: arrays.get(prefix + name) for name in names}
    for name, column in columns.items():
        if column is None or column.dtype != DTYPES.get(name, np.int64):
            raise NotValidError
        if not is_within(column, *limits.get(name, (MISSING, _MAX_INT))):
            raise NotValidError
    if not are_equally_long(*columns.values()):
        raise NotValidError
    return columns


def _read_sparse(arrays: Mapping[str, Any], name: str, n_rows: int, n_names: int) -> SparseColumn:
    """Read a sparse column.

    Raises:
        NotValidError: Its rows are not within the table, or its values are not numbers of names.
    """
    values, rows = arrays[name], arrays.get(name + _ROWS)
    if rows is None or rows.dtype != np.int32 or len(rows) != len(values):
        raise NotValidError
    if not (is_within(rows, 0, n_rows - 1) and is_ascending(rows, 1)):
        raise NotValidError
    if (values.dtype.kind == "f") != (name in FIGURES):
        raise NotValidError
    if name in INTERNED and not is_within(values, 0, n_names - 1):
        raise NotValidError
    return SparseColumn(rows, values)
