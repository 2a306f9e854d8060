"""The arguments and launches of recorded events, as columns."""

import json
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.engine.context import Context
from profkit.index.distinct import numbered, numbered_values
from profkit.model.events import NO_ROW, EventTable, Int64s, Rows, SparseColumn
from profkit.units import format_bytes, format_count

MAX_SETS: Final = 4_000
"""Different sets of arguments. An argument that would make more of them is left out."""
_NO_TENSOR: Final = frozenset({"", "[]"})


@dataclass(frozen=True)
class EventArguments:
    """The arguments of some events.

    Attributes:
        sets: Labels and values that events share, such as a kernel's grid. Each set once.
        of_event: Index into ``sets``. Shape ``(k,)``.
        correlation: :data:`~profkit.model.events.MISSING` where an event has none. Shape ``(k,)``.
        external_id: As ``correlation``.
        launch: For device work the index of the call that launched it among the events, else
            :data:`~profkit.model.events.NO_ROW`. Shape ``(k,)``.
    """

    sets: tuple[tuple[tuple[str, str], ...], ...]
    of_event: Int64s
    correlation: Int64s
    external_id: Int64s
    launch: Int64s


def find_event_arguments(ctx: Context, rows: Rows) -> EventArguments:
    """Return the arguments of the events in some rows of a recording. Shape ``(k,)``."""
    events, launches = ctx.events, ctx.launches
    # The last element stands for NO_ROW, which is -1.
    place = np.full(len(events) + 1, NO_ROW, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    place[NO_ROW] = NO_ROW

    launch = np.full(len(events), NO_ROW, dtype=np.int64)
    launch[launches.work] = place[launches.launch]

    sets, of_event = _find_sets(events, rows)
    return EventArguments(
        sets=sets,
        of_event=of_event,
        correlation=events.correlation.at(rows),
        external_id=events.external_id.at(rows),
        launch=launch[rows],
    )


def _find_sets(
    events: EventTable, rows: Rows
) -> tuple[tuple[tuple[tuple[str, str], ...], ...], Int64s]:
    """Find the distinct sets of arguments, and the set of each row."""
    # Each column refines the sets of the columns before it.
    key = np.zeros(len(rows), dtype=np.int64)
    shown: list[tuple[str, Callable[[float], str], SparseColumn]] = []
    for label, column, to_text in _list_columns(events):
        if not len(column.rows):
            continue
        values, number = numbered_values(column.values)
        of_row = np.zeros(len(events), dtype=np.int64)
        of_row[column.rows] = number + 1
        distinct, refined_key = numbered(key * (len(values) + 1) + of_row[rows])
        # An argument that differs in almost every event would make the page large.
        if len(distinct) > MAX_SETS:
            continue
        key = refined_key
        shown.append((label, to_text, column))

    # The first event of each set has the texts of all.
    first = np.zeros(int(key.max(initial=0)) + 1, dtype=np.intp)
    first[key[::-1]] = np.arange(len(rows))[::-1]
    first_rows = rows[first] if len(rows) else rows
    sets: list[list[tuple[str, str]]] = [[] for _ in range(len(first_rows))]
    for label, to_text, column in shown:
        values = column.figures_at(first_rows)
        for place in np.flatnonzero(~np.isnan(values)).tolist():
            if text := to_text(values[place]):
                sets[place].append((label, text))
    return tuple(map(tuple, sets)), key


def _list_columns(
    events: EventTable,
) -> Iterator[tuple[str, SparseColumn, Callable[[float], str]]]:
    """Yield label, values and text of the arguments; the arguments that vary most come last."""

    def number(value: float) -> str:
        return format_count(int(value))

    def plain(value: float) -> str:
        return str(int(value))

    def name(value: float) -> str:
        return events.names[int(value)]

    yield "Device", events.device, plain
    yield "Stream", events.stream, plain
    yield "Grid", events.grid, lambda value: _sizes(name(value))
    yield "Block", events.block, lambda value: _sizes(name(value))
    yield "Blocks per SM", events.blocks_per_sm, lambda value: f"{value:.2f}"
    yield "Estimated occupancy", events.occupancy_percent, lambda value: f"{value:.0f}%"
    yield "Bytes", events.n_bytes, lambda value: format_bytes(int(value))
    yield "From device", events.from_device, plain
    yield "To device", events.to_device, plain
    yield "Collective", events.collective, name
    yield "Process group", events.group_description, name
    yield "Elements in", events.n_in, number
    yield "Elements out", events.n_out, number
    yield "Element type", events.element_type, name
    yield "Input shapes", events.input_dims, lambda value: _inputs(name(value))
    yield "Input types", events.input_types, lambda value: _inputs(name(value))
    yield "Other inputs", events.concrete_inputs, lambda value: _inputs(name(value))


def _sizes(text: str) -> str:
    """``256 x 1 x 1`` of ``[256, 1, 1]``."""
    try:
        return " x ".join(format_count(int(size)) for size in json.loads(text))
    except (TypeError, ValueError):
        return text


def _inputs(text: str) -> str:
    """Return the inputs of an operator, without tensors of which the argument has nothing."""
    try:
        inputs = json.loads(text)
    except ValueError:
        return text
    if not isinstance(inputs, list):
        return text
    shown = [entry if isinstance(entry, str) else json.dumps(entry) for entry in inputs]
    return ", ".join(entry for entry in shown if entry not in _NO_TENSOR)
