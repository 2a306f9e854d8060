"""The batches of a trace, put together: one table of events, one of allocations."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from profkit.model.events import (
    MISSING,
    EventTable,
    Int32s,
    Int64s,
    MemoryTable,
    SparseColumn,
)
from profkit.model.trace import OddEvent
from profkit.readers.kineto.batch import MEMORY, NAMES, SPARSE, WANTED, Batch, Columns, Vocabulary
from profkit.readers.kineto.begin_end import pair_edges
from profkit.readers.kineto.invalid_times import set_aside
from profkit.readers.kineto.threads import lanes_of_callers
from profkit.readers.malloc_trim import give_back

_HOST_TYPE: Final = 0
_HOST_DEVICE: Final = -1
_PLACED: Final = ("position", "lane", "ts_ns")
_EDGES: Final = (*_PLACED, "category", "name")
_COMPLETE: Final = (*_EDGES, "dur_ns")

Share = dict[int, Batch]
"""Batches by their place in the file: all of them, or those that one process read."""


@dataclass(frozen=True)
class Tables:
    """A trace's events.

    Attributes:
        events: Its complete events.
        memory: Its ``[memory]`` events.
        start_ns: Its start on the file's own clock: 0 in both tables.
        odd: Events whose times make no sense, which are in neither.
        n_odd: How many of them there are; ``odd`` names the first.
        n_unpaired: Begins without an end, and ends without a begin.
    """

    events: EventTable
    memory: MemoryTable
    start_ns: int
    odd: tuple[OddEvent, ...]
    n_odd: int
    n_unpaired: int


def adopt(share: Share, theirs: Vocabulary, ours: Vocabulary) -> None:
    """Renumber the batches that another process read by our own vocabulary.

    Args:
        share: The batches, changed in place.
        theirs: What their numbers mean.
        ours: What they shall mean. It grows.
    """
    names = np.array([ours.names[text] for text in theirs.names.texts], dtype=np.int32)
    lanes = np.array([ours.lanes[pair] for pair in theirs.lanes.pairs()], dtype=np.int32)
    ours.lanes.learn(theirs.lanes)
    for text, count in theirs.category_counts.items():
        ours.category_counts[text] = ours.category_counts.get(text, 0) + count
    for batch in share.values():
        for columns in (batch.complete, batch.memory, batch.edges):
            for key, numbers in (("name", names), ("lane", lanes)):
                if key in columns:
                    columns[key] = numbers[columns[key]]
        for key in NAMES & batch.sparse.keys():
            rows, values = batch.sparse[key]
            batch.sparse[key] = (rows, names[values])
        for key in NAMES & batch.edges.keys():
            numbers = batch.edges[key]
            has = numbers != MISSING
            numbers[has] = names[numbers[has]]


def assemble(share: Share, words: Vocabulary) -> Tables:
    """Put all batches of a trace together.

    Args:
        share: Every batch. It is emptied on the way, so that nothing is in memory twice.
        words: What their numbers mean.
    """
    batches = [share[place] for place in sorted(share)]
    share.clear()
    first = np.cumsum([0, *(batch.n_events for batch in batches)])
    first_row = np.cumsum([0, *(batch.n_complete for batch in batches)])
    for batch, base in zip(batches, first.tolist(), strict=False):
        for columns in (batch.complete, batch.memory, batch.edges):
            if columns:
                columns["position"] += np.int32(base)
    sparse = {key: _sparse(batches, first_row, key) for key in SPARSE}
    complete = {key: _taken([b.complete for b in batches], key) for key in _COMPLETE}
    memory = {key: _taken([b.memory for b in batches], key) for key in (*_PLACED, *MEMORY)}
    edges = {key: _taken([b.edges for b in batches], key) for key in (*_EDGES, "begins", *SPARSE)}
    tables = _tables(complete, sparse, memory, edges, words)
    give_back()
    return tables


def _tables(
    columns: Columns,
    sparse: dict[str, tuple[Int32s, npt.NDArray[Any]]],
    memory: Columns,
    edges: Columns,
    words: Vocabulary,
) -> Tables:
    n_unpaired = 0
    if len(edges["ts_ns"]):
        paired, n_unpaired = pair_edges(edges)
        sparse = _with_paired(sparse, paired, len(columns["ts_ns"]))
        columns = {key: np.concatenate((columns[key], paired[key])) for key in columns}
    columns["lane"] = lanes_of_callers(columns, words.lanes.pairs())
    odd, kept = set_aside(columns, words.names.texts)
    if odd:
        rows = np.cumsum(kept) - 1
        columns = {key: column[kept] for key, column in columns.items()}
        for key, (at, values) in sparse.items():
            stays = kept[at]
            sparse[key] = (rows[at[stays]], values[stays])
    known = memory["ts_ns"] != MISSING
    memory = {key: column[known] for key, column in memory.items()}
    starts = [column.min() for column in (columns["ts_ns"], memory["ts_ns"]) if len(column)]
    start_ns = int(min(starts, default=0))
    columns["ts_ns"] -= start_ns
    memory["ts_ns"] -= start_ns
    events = EventTable(
        position=_frozen(columns["position"], np.int32),
        category=_frozen(columns["category"], np.uint8),
        name=_frozen(columns["name"], np.int32),
        lane=_frozen(columns["lane"], np.int32),
        ts_ns=_frozen(columns["ts_ns"], np.int64),
        dur_ns=_frozen(columns["dur_ns"], np.int64),
        names=tuple(words.names.texts),
        lanes=words.lanes.lanes(),
        **{key: _column(*sparse.pop(key)) for key in SPARSE},
    )
    most = 20
    return Tables(events, _memory_table(memory), start_ns, odd[:most], len(odd), n_unpaired)


def _with_paired(
    sparse: dict[str, tuple[Int32s, npt.NDArray[Any]]], paired: Columns, first_row: int
) -> dict[str, tuple[Int32s, npt.NDArray[Any]]]:
    """Add what paired edges carry, each what events of its category can have.

    Args:
        sparse: Rows that have a value, and their values.
        paired: The events that edges became.
    """
    joined = {}
    for key, (rows, values) in sparse.items():
        able = [category for category, wanted in WANTED.items() if key in wanted]
        has = (paired[key] != MISSING) & np.isin(paired["category"], able)
        more = np.flatnonzero(has).astype(np.int32) + np.int32(first_row)
        joined[key] = (
            np.concatenate((rows, more)),
            np.concatenate((values, paired[key][has])),
        )
    return joined


def _taken(parts: list[Columns], key: str) -> npt.NDArray[Any]:
    """A column of all batches, taken out of them."""
    found = [columns.pop(key) for columns in parts if key in columns]
    if not found:
        return np.zeros(0, dtype=np.int64)
    column = np.concatenate(found)
    found.clear()
    give_back()
    return column


def _sparse(batches: list[Batch], first_row: Int64s, key: str) -> tuple[Int32s, npt.NDArray[Any]]:
    """Rows that have a value, and their values, of all batches, taken out of them."""
    rows, values = [], []
    for batch, base in zip(batches, first_row.tolist(), strict=False):
        if key in batch.sparse:
            at, given = batch.sparse.pop(key)
            rows.append(at + np.int32(base))
            values.append(given)
    if not rows:
        return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
    return np.concatenate(rows), np.concatenate(values)


def _column(rows: Int32s, values: npt.NDArray[Any]) -> SparseColumn:
    rows.flags.writeable = values.flags.writeable = False
    return SparseColumn(rows, values)


def _frozen(column: npt.NDArray[Any], dtype: type[np.generic]) -> npt.NDArray[Any]:
    column = column.astype(dtype, copy=False)
    column.flags.writeable = False
    return column


def _or(column: npt.NDArray[Any], default: int) -> npt.NDArray[Any]:
    return np.where(column == MISSING, default, column)


def _memory_table(columns: Columns) -> MemoryTable:
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
