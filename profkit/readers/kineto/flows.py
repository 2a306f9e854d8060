"""Correlation ids from flow events, for traces whose calls and device work have none.

Kineto draws an arrow from each launch to its work: two flow events of one id, at the start of both
events and on their threads. They are read in a second pass, only where a trace needs them.

Source: ``libkineto/src/output_json.cpp`` (``handleLinkStart``, ``handleLinkEnd``).
"""

from decimal import Decimal
from typing import Any, Final

import msgspec
import numpy as np

from profkit.model.events import MISSING, Category, EventTable, Int64s, Rows, SparseColumn
from profkit.patterns import regex
from profkit.readers.kineto.batch import to_int64, to_ns
from profkit.readers.kineto.split import UNREADABLE, TraceText, split_batches
from profkit.readers.stream import Chunks, Place, open_plain

_LAUNCHES: Final = frozenset({"ac2g", "async_cpu_to_gpu"})
"""Categories of the flows from launches to their work; the second is older."""
_ID: Final = regex(r"[0-9]{1,20}")
_CALLS: Final = (Category.RUNTIME, Category.DRIVER)
_WORK: Final = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)


class _Flow(msgspec.Struct, gc=False):
    """Any event, decoded only for what a flow event has."""

    ph: Any = ""
    cat: Any = ""
    id: Any = None
    pid: Any = None
    tid: Any = None
    ts: Decimal | None = None


_FLOWS: Final = msgspec.json.Decoder(list[_Flow], strict=False)


def need_flows(events: EventTable) -> bool:
    """Whether neither device work nor calls have correlation ids, and there are both."""
    return all(
        len(rows) and (events.correlation.at(rows) == MISSING).all()
        for rows in (events.rows_of(*_CALLS), events.rows_of(*_WORK))
    )


def flow_correlation(
    place: Place, limit_bytes: int, events: EventTable, start_ns: int
) -> SparseColumn:
    """The ids of flows as the correlation of calls and device work.

    Batches that are not valid JSON are left out.

    Args:
        place: The file that the events were read from.
        start_ns: The start of the events on the file's clock.

    Raises:
        LoadError: The file cannot be read again.
    """
    rows = events.rows_of(*_CALLS, *_WORK)
    lanes = {(lane.pid, lane.tid): number for number, lane in enumerate(events.lanes)}
    moments = np.unique(events.ts_ns[rows])
    moment = np.searchsorted(moments, events.ts_ns[rows])
    keys = events.lane[rows].astype(np.int64) * len(moments) + moment
    order = np.argsort(keys, kind="stable")
    rows, keys = rows[order], keys[order]
    found = np.full(len(rows), MISSING, dtype=np.int64)
    with open_plain(place) as stream:
        for batch in split_batches(Chunks(stream, limit_bytes), TraceText()):
            flows = _flows(batch, lanes)
            lane = to_int64([lanes[str(each.pid), str(each.tid)] for each in flows])
            at_ns = to_ns([each.ts for each in flows]) - start_ns
            moment = np.minimum(np.searchsorted(moments, at_ns), len(moments) - 1)
            key = lane * len(moments) + moment
            place_of = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
            hit = (moments[moment] == at_ns) & (keys[place_of] == key)
            found[place_of[hit]] = to_int64([int(each.id) for each in flows])[hit]
    return _column(rows, found)


def _flows(batch: bytes, lanes: dict[tuple[str, str], int]) -> list[_Flow]:
    """The flow events of a batch that start or end on a known thread or stream."""
    try:
        events = _FLOWS.decode(batch)
    except (*UNREADABLE, msgspec.ValidationError):
        return []
    return [
        each
        for each in events
        if isinstance(each.cat, str)
        and each.cat in _LAUNCHES
        and each.ts is not None
        and _ID.fullmatch(str(each.id))
        and (str(each.pid), str(each.tid)) in lanes
    ]


def _column(rows: Rows, values: Int64s) -> SparseColumn:
    has = np.flatnonzero(values != MISSING)
    has = has[np.argsort(rows[has])]
    at, ids = rows[has].astype(np.int32), values[has]
    at.flags.writeable = ids.flags.writeable = False
    return SparseColumn(at, ids)
