"""Time in which somebody waits: the host for the device, the program for its data.

All of these are sets of time on the host.
"""

import re
from typing import Final

import numpy as np

from profkit.index.intervals import EMPTY, Intervals, union
from profkit.index.launches import Launches
from profkit.index.runtime_calls import BLOCKING_COPY, COPY, EXPLICIT_SYNC, names_matching
from profkit.model.events import NO_ROW, Category, EventTable, Int32s, Mask, Rows

_DATA_WAIT: Final = re.compile(r"^enumerate\(DataLoader\)|^profkit\.data_wait$")
_PIECE: Final = 1 << 18
"""Rows that are united at once: what nests in others is forgotten before the next."""
_PAGEABLE_TO_HOST: Final = re.compile(r"DtoH \(Device -> Pageable\)")
_PAGEABLE_TO_DEVICE: Final = re.compile(r"HtoD \(Pageable -> Device\)")


def data_waits(events: EventTable) -> Rows:
    """Rows in which the program waits for its next batch, ascending.

    Source: ``torch/utils/data/dataloader.py`` (``_BaseDataLoaderIter.__next__`` names itself
    ``enumerate(DataLoader)#…``); ``profkit.data_wait`` is what ``profkit.steps`` writes around the
    ``next`` of other iterables.
    """
    named = names_matching(events.names, _DATA_WAIT)
    host = np.isin(events.category, (Category.ANNOTATION, Category.OP))
    return np.flatnonzero(host & named[events.name])


def copies_named(events: EventTable, launches: Launches, pattern: re.Pattern[str]) -> Mask:
    """Which device work is a copy whose name matches. Shape of ``launches.work``."""
    named = names_matching(events.names, pattern)
    copies = events.category[launches.work] == Category.MEMCPY
    return np.asarray(copies & named[events.name[launches.work]])


def pageable_to_host(events: EventTable, launches: Launches) -> Mask:
    """Which device work is a copy into pageable host memory. Shape of ``launches.work``."""
    return copies_named(events, launches, _PAGEABLE_TO_HOST)


def pageable_to_device(events: EventTable, launches: Launches) -> Mask:
    """Which device work is a copy out of pageable host memory. Shape of ``launches.work``."""
    return copies_named(events, launches, _PAGEABLE_TO_DEVICE)


def blocking_calls(events: EventTable, launches: Launches) -> Rows:
    """Runtime calls in which the host waits for a device, ascending.

    These are explicit synchronization, copies that block whatever their memory, and asynchronous
    copies into pageable memory, which return only when the copy is done.

    Source: "API synchronization behavior" in the CUDA Runtime API reference: transfers from device
    memory to pageable host memory return only once the copy has completed.
    """
    into_pageable = launches.launch[pageable_to_host(events, launches)]
    into_pageable = into_pageable[into_pageable != NO_ROW]
    copies = COPY.rows(events)
    found = np.concatenate(
        (
            EXPLICIT_SYNC.rows(events),
            BLOCKING_COPY.rows(events),
            copies[np.isin(copies, into_pageable)],
        )
    )
    return np.unique(found)


def covered_by(events: EventTable, rows: Rows | Int32s) -> Intervals:
    """The time that some rows cover."""
    pieces = [
        union(events.ts_ns[here], events.ts_ns[here] + events.dur_ns[here])
        for here in (rows[first : first + _PIECE] for first in range(0, len(rows), _PIECE))
    ]
    if len(pieces) == 1:
        return pieces[0]
    starts = [piece.starts_ns for piece in (EMPTY, *pieces)]
    ends = [piece.ends_ns for piece in (EMPTY, *pieces)]
    return union(np.concatenate(starts), np.concatenate(ends))
