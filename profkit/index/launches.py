"""Which host call launched which device work."""

from functools import cached_property

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.distinct import marked
from profkit.index.runtime_calls import EXPLICIT_SYNC, LAUNCH
from profkit.model.events import MISSING, NO_ROW, Category, EventTable, Int32s, Int64s, Rows


@dataclass(frozen=True)
class Launches:
    """Device work and the calls that launched it.

    A graph launch has many kernels. Any other call launches at most one kernel, copy or fill.

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
    def calls(self) -> Int32s:
        """Return the rows of the known launches, once per piece of device work."""
        return np.asarray(self.launch[self.launch != NO_ROW])

    def of(self, rows: Rows | Int32s) -> Int32s:
        """Return the launch of some device work, or :data:`NO_ROW`. Shape of ``rows``."""
        return self.launch[np.searchsorted(self.work, rows)]

    @property
    def op_or_call(self) -> Int32s:
        """Return the operator that launched each, or else the call. Shape ``(w,)``."""
        return np.where(self.op != NO_ROW, self.op, self.launch)

    @property
    def call_or_op(self) -> Int32s:
        """Return the call that launched each, or else the operator. Shape ``(w,)``."""
        return np.where(self.launch != NO_ROW, self.launch, self.op)

    @cached_property
    def orphans(self) -> Rows:
        """Return the rows of device work whose launch is not in the trace, ascending."""
        return np.asarray(self.work[self.launch == NO_ROW])

    @property
    def cause(self) -> Int32s:
        """Return the host row that caused each piece of work: its launch, or else its operator."""
        return np.where(self.launch == NO_ROW, self.op, self.launch)

    def in_order(self, events: EventTable) -> Rows:
        """Return device work with a known launch within an operator, by thread, then launch.

        Returns:
            Indices into :attr:`work`.
        """
        launched = np.flatnonzero((self.launch != NO_ROW) & (self.op != NO_ROW))
        launch = self.launch[launched]
        return launched[np.lexsort((events.ts_ns[launch], events.lane[launch]))]


def join_launches(events: EventTable, innermost_op: Int32s) -> Launches:
    """Join device work to its launches by correlation, or else by external id.

    Args:
        innermost_op: The innermost operator around every row, or :data:`NO_ROW`. Shape ``(n,)``.
    """
    work = events.device_work
    calls = _find_launching_calls(events)
    launch = match_first(events.correlation.at(calls), calls, events.correlation.at(work))

    has_no_correlation = events.correlation.at(work) == MISSING
    if has_no_correlation.any():
        launch[has_no_correlation] = _match_by_external_id(events, work[has_no_correlation])

    # Some recordings lack the calls. Then the operator's own id is left.
    op = np.where(launch == NO_ROW, NO_ROW, innermost_op[launch]).astype(np.int32)
    is_unknown = op == NO_ROW
    if is_unknown.any():
        ops = events.rows_of(Category.OP)
        wanted = events.external_id.at(work[is_unknown])
        op[is_unknown] = match_first(events.external_id.at(ops), ops, wanted)

    return Launches(work=work, launch=launch, op=op)


def _find_launching_calls(events: EventTable) -> Rows:
    """Find calls that may have launched something, earliest first.

    A SYCL call, the driver call within it and the wait that ends it share one correlation. The
    outermost call launched, never the wait.
    """
    calls = events.host_calls
    calls = calls[~marked(EXPLICIT_SYNC.rows(events), len(events))[calls]]
    return events.sort_by_start(calls)


def _match_by_external_id(events: EventTable, work: Rows) -> Int32s:
    """Find the launch of device work without correlation: the only call with its external id.

    Some profilers give each call and its work an ``External id`` of their own. Others write the
    operator's id there, which several calls share: such an id joins nothing.

    Args:
        work: Shape ``(w,)``, as the result.
    """
    call_rows = LAUNCH.rows(events)
    call_rows = call_rows[events.correlation.at(call_rows) == MISSING]

    # An id that several calls share is the operator's, and identifies no launch.
    external_ids = events.external_id.at(call_rows)
    _, first, n_calls = np.unique(external_ids, return_index=True, return_counts=True)
    unambiguous = first[n_calls == 1]
    wanted_ids = events.external_id.at(work)
    launch = match_first(external_ids[unambiguous], call_rows[unambiguous], wanted_ids)

    # Work cannot start before its launch: a match in the wrong order is another event's id.
    is_before = events.ts_ns[launch] <= events.ts_ns[work]
    return np.where((launch != NO_ROW) & is_before, launch, NO_ROW).astype(np.int32)


def match_first(keys: Int64s, rows: Rows, wanted: Int64s) -> Int32s:
    """Find the first row with each wanted key, or :data:`NO_ROW`.

    Args:
        keys: The key of each row; :data:`MISSING` matches nothing. Shape ``(k,)``.
        rows: Shape ``(k,)``.
        wanted: Shape ``(w,)``.
    """
    has_key = keys != MISSING
    keys, rows = keys[has_key], rows[has_key]
    if not len(keys):
        return np.full(len(wanted), NO_ROW, dtype=np.int32)

    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys[order], wanted)
    place[place == len(keys)] = 0
    match = rows[order][place]
    return np.where(keys[order][place] == wanted, match, NO_ROW).astype(np.int32)
