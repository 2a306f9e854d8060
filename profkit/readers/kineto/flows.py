"""Reads correlation ids from flow events, for traces whose calls and device work have none.

Kineto draws an arrow from each launch to its work: two flow events of one id, at the start of both
events and on their threads. They are read in a second pass, only where a trace needs them.

Source: ``libkineto/src/output_json.cpp`` (``handleLinkStart``, ``handleLinkEnd``).
"""

from decimal import Decimal
from typing import Any, Final

import msgspec
import numpy as np

from profkit.model.events import (
    DEVICE_WORK,
    HOST_CALLS,
    MISSING,
    EventTable,
    Int64s,
    Rows,
    SparseColumn,
)
from profkit.patterns import regex
from profkit.readers.kineto.assemble import freeze_sparse
from profkit.readers.kineto.batch import to_int64, to_ns
from profkit.readers.kineto.split import UNREADABLE, TraceText, split_batches
from profkit.readers.stream import Chunks, Place, open_plain

_LAUNCHES: Final = frozenset({"ac2g", "async_cpu_to_gpu"})
"""Categories of the flows from launches to their work; the second is older."""
_ID: Final = regex(r"[0-9]{1,20}")


class _Flow(msgspec.Struct, gc=False):
    """An event of any kind, decoded only for the fields of a flow event."""

    ph: Any = ""
    cat: Any = ""
    id: Any = None
    pid: Any = None
    tid: Any = None
    ts: Decimal | None = None


_FLOWS: Final = msgspec.json.Decoder(list[_Flow], strict=False)


def need_flows(events: EventTable) -> bool:
    """Return whether there are device work and calls, and neither have correlation ids."""
    return all(
        len(rows) and (events.correlation.at(rows) == MISSING).all()
        for rows in (events.host_calls, events.device_work)
    )


def read_correlation(
    place: Place, limit_bytes: int, events: EventTable, start_ns: int
) -> SparseColumn:
    """Read the ids of flows as the correlation of calls and device work.

    Batches that are not valid JSON are left out.

    Args:
        place: The file that the events were read from.
        limit_bytes: Maximum decompressed size.
        events: The events of the trace.
        start_ns: The start of the events on the file's clock.

    Raises:
        LoadError: The file cannot be read again.
    """
    # Lane and start identify an event. As one number they are sorted and searched at once.
    rows = events.rows_of(*HOST_CALLS, *DEVICE_WORK)
    starts = np.unique(events.ts_ns[rows])
    start_index = np.searchsorted(starts, events.ts_ns[rows])
    keys = events.lane[rows].astype(np.int64) * len(starts) + start_index
    order = np.argsort(keys, kind="stable")
    rows, keys = rows[order], keys[order]

    lanes = {(lane.pid, lane.tid): number for number, lane in enumerate(events.lanes)}
    correlation = np.full(len(rows), MISSING, dtype=np.int64)
    with open_plain(place) as stream:
        for batch in split_batches(Chunks(stream, limit_bytes), TraceText()):
            flows = _decode_flows(batch, lanes)
            lane = to_int64([lanes[str(flow.pid), str(flow.tid)] for flow in flows])
            at_ns = to_ns([flow.ts for flow in flows]) - start_ns
            start_index = np.minimum(np.searchsorted(starts, at_ns), len(starts) - 1)
            key = lane * len(starts) + start_index
            index = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
            is_match = (starts[start_index] == at_ns) & (keys[index] == key)
            ids = to_int64([int(flow.id) for flow in flows])
            correlation[index[is_match]] = ids[is_match]
    return _build_column(rows, correlation)


def _decode_flows(batch: bytes, lanes: dict[tuple[str, str], int]) -> list[_Flow]:
    """Return the flow events of a batch that start or end on one of the lanes."""
    try:
        events = _FLOWS.decode(batch)
    except (*UNREADABLE, msgspec.ValidationError):
        return []
    return [
        event
        for event in events
        if isinstance(event.cat, str)
        and event.cat in _LAUNCHES
        and event.ts is not None
        and _ID.fullmatch(str(event.id))
        and (str(event.pid), str(event.tid)) in lanes
    ]


def _build_column(rows: Rows, values: Int64s) -> SparseColumn:
    has = np.flatnonzero(values != MISSING)
    has = has[np.argsort(rows[has])]
    return freeze_sparse(rows[has].astype(np.int32), values[has])
