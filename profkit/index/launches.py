"""Which host call launched which device work."""

from functools import cached_property
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.runtime_calls import EXPLICIT_SYNC, LAUNCH
from profkit.model.events import MISSING, NO_ROW, Category, EventTable, Int32s, Int64s, Rows

DEVICE_WORK: Final = (Category.KERNEL, Category.MEMCPY, Category.MEMSET)
CALLS: Final = (Category.RUNTIME, Category.DRIVER)


@dataclass(frozen=True)
class Launches:
    """Device work and the calls that launched it.

    A graph launch has many kernels; any other call launches at most one kernel, copy or fill.

    Attributes:
        work: Rows of kernels, copies and fills, ascending. Shape ``(w,)``.
        launch: Row of the runtime or driver call that launched each, or :data:`NO_ROW` where it is
            not in the trace. Shape ``(w,)``.
        op: Row of the innermost operator that launched each, or :data:`NO_ROW`. Shape ``(w,)``.
    """

    work: Rows
    launch: Int32s
    op: Int32s

    @cached_property
    def orphans(self) -> Rows:
        """Device work whose launch is not in the trace. Rows, ascending."""
        return np.asarray(self.work[self.launch == NO_ROW])

    def in_order(self, events: EventTable) -> Rows:
        """Device work with a known launch within an operator, by thread in the order of launches.

        Returns:
            Indices into :attr:`work`.
        """
        known = np.flatnonzero((self.launch != NO_ROW) & (self.op != NO_ROW))
        launch = self.launch[known]
        return known[np.lexsort((events.ts_ns[launch], events.lane[launch]))]


def join_launches(events: EventTable, innermost_op: Int32s) -> Launches:
    """Join device work to its launches by correlation, or by external id where there is none.

    Args:
        innermost_op: The innermost operator around every row, or :data:`NO_ROW`. Shape ``(n,)``.
    """
    work = events.rows_of(*DEVICE_WORK)
    calls = _launching(events)
    launch = match_first(events.correlation.at(calls), calls, events.correlation.at(work))
    alone = events.correlation.at(work) == MISSING
    if alone.any():
        launch[alone] = _by_external_id(events, work[alone])
    op = np.where(launch == NO_ROW, NO_ROW, innermost_op[launch]).astype(np.int32)
    is_unknown = op == NO_ROW
    if is_unknown.any():
        ops = events.rows_of(Category.OP)
        wanted = events.external_id.at(work[is_unknown])
        op[is_unknown] = match_first(events.external_id.at(ops), ops, wanted)
    return Launches(work=work, launch=launch, op=op)


def _launching(events: EventTable) -> Rows:
    """Calls that may have launched something, earliest first.

    A SYCL call, the driver call within it and the wait that ends it share one correlation: the
    outermost one launched, never the wait.
    """
    may_launch = np.isin(events.category, CALLS)
    may_launch[EXPLICIT_SYNC.rows(events)] = False
    calls = np.flatnonzero(may_launch)
    return calls[np.argsort(events.ts_ns[calls], kind="stable")]


def _by_external_id(events: EventTable, work: Rows) -> Int32s:
    """The launch of device work without correlation: the one call that has its external id.

    Some profilers give each call and its work an ``External id`` of their own. Others write there
    that of the operator, which several calls share: such an id joins nothing.

    Args:
        work: Shape ``(w,)``, that of the result.
    """
    calls = LAUNCH.rows(events)
    calls = calls[events.correlation.at(calls) == MISSING]
    ids = events.external_id.at(calls)
    _, first, count = np.unique(ids, return_index=True, return_counts=True)
    alone = first[count == 1]
    launch = match_first(ids[alone], calls[alone], events.external_id.at(work))
    is_before = events.ts_ns[launch] <= events.ts_ns[work]
    return np.where((launch != NO_ROW) & is_before, launch, NO_ROW).astype(np.int32)


def match_first(keys: Int64s, rows: Rows, wanted: Int64s) -> Int32s:
    """For each wanted key the first row that has it, or :data:`NO_ROW`.

    Args:
        keys: The key of each row; :data:`MISSING` matches nothing. Shape ``(k,)``.
        rows: Shape ``(k,)``.
        wanted: Shape ``(w,)``.
    """
    has = keys != MISSING
    keys, rows = keys[has], rows[has]
    if not len(keys):
        return np.full(len(wanted), NO_ROW, dtype=np.int32)
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys[order], wanted)
    place[place == len(keys)] = 0
    match = rows[order][place]
    return np.where(keys[order][place] == wanted, match, NO_ROW).astype(np.int32)
