"""Calls that block the host until a device has finished, and their causes."""

import re
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from profkit.dataclass import dataclass
from profkit.index.columns import Columns
from profkit.index.distinct import are_among, common, distinct, marked, united
from profkit.index.host.nesting import CallTree
from profkit.index.launches import Launches
from profkit.index.runtime_calls import (
    BLOCKING_COPY,
    COPY,
    DEVICE_SYNC,
    EXPLICIT_SYNC,
    names_matching,
    rows_named,
)
from profkit.model.events import (
    MISSING,
    NO_ROW,
    Category,
    EventTable,
    Int32s,
    Int64s,
    Mask,
    Rows,
    are_equally_long,
    is_within,
)
from profkit.model.torch_names import BUILTIN_PREFIX, DATA_WAITS, OPTIMIZER
from profkit.patterns import regex

_READ: Final = regex(
    r"^aten::(item|_local_scalar_dense|is_nonzero|nonzero(_numpy)?|argwhere|masked_select"
    r"|_?unique(2|_dim|_consecutive|_dim_consecutive)?|equal|allclose|bincount|histc"
    r"|repeat_interleave|one_hot)$"
)
"""Operators that return a value, or a shape that depends on values, to the host.

Source: ``aten/src/ATen/native/cuda/CUDAScalar.cu`` (``item``), ``Nonzero.cu``, ``Unique.cu``,
``Equal.cpp``, ``SummaryOps.cu`` (``bincount``), ``native/Repeat.cpp``, ``native/Onehot.cpp``;
the documentation of ``torch.nonzero`` says that it synchronizes host and device.
"""
_INDEX: Final = regex(r"^aten::(_?index(_put_?|_put_impl_)?|where)$")
"""Operators that read a value only when indexed with a mask, by calling ``nonzero``."""
_ITEM: Final = regex(r"^aten::(item|_local_scalar_dense)$")
_INDEXING: Final = regex(r"^aten::(select|slice)$")
_LIBRARY: Final = regex(rf"{OPTIMIZER.pattern}|{DATA_WAITS.pattern}")
_LOADER: Final = regex(r"(^|[/\\])torch[/\\]utils[/\\]data[/\\]")
_BUILTIN: Final = regex(rf"^{BUILTIN_PREFIX}")
_PROFILER: Final = regex(r"^(torch[/\\](autograd[/\\]profiler|profiler[/\\])|profkit[/\\])")
_NONZERO: Final = regex(r"^aten::nonzero(_numpy)?$")
_TO_HOST: Final = regex(r"DtoH|Device -> (Pageable|Pinned|Host)|Memcpy D2[MH]\b")
TO_DEVICE: Final = regex(r"HtoD|(Pageable|Pinned|Host) -> Device|Memcpy [MH]2D\b")
_PINNED: Final = regex(r"Pinned|\bHOST\b")
"""An XPU's profiler names driver-allocated (pinned) host memory ``HOST`` and other host memory
``MEMORY(Unknown)``. Source: ``pti_view_memory_type`` of PTI-GPU."""
_PAGEABLE_TO_HOST: Final = regex(r"DtoH \(Device -> Pageable\)")
_PAGEABLE_TO_DEVICE: Final = regex(r"HtoD \(Pageable -> Device\)")
COPYING: Final = regex(r"^aten::(to|_to_copy|copy_|_copy_from|cpu|cuda|clone|contiguous)$")
"""Operators that copy a tensor; the outermost one is what the user called."""


class SyncKind(IntEnum):
    """Cause of a synchronization."""

    OTHER = 0
    """Any other synchronization inside an operator."""
    READ = 1
    """Reading a value, such as by ``item``."""
    TO_HOST = 2
    """A device-to-host copy."""
    TO_DEVICE = 3
    """A host-to-device copy."""
    EXPLICIT = 4
    """An explicit synchronizing call outside any operator."""


@dataclass(frozen=True)
class Syncs(Columns):
    """Calls that block the host until a device has finished.

    Attributes:
        rows: Rows of runtime or driver calls, ascending. Shape ``(k,)``.
        kind: A :class:`SyncKind` value. Shape ``(k,)``.
        owner: The row to report: the outermost operator of its kind, as the user called it, or the
            call itself. Shape ``(k,)``.
        copy: The copy waited for, a row of device work, or :data:`NO_ROW`. Shape ``(k,)``.
    """

    rows: Rows
    kind: npt.NDArray[np.uint8]
    owner: Int32s
    copy: Int32s

    def fits(self, events: EventTable) -> bool:
        """Return whether syncs from a cache may belong to some events."""
        last = len(events) - 1
        return (
            are_equally_long(self.rows, self.kind, self.owner, self.copy)
            and is_within(self.rows, 0, last)
            and is_within(self.kind, 0, max(SyncKind))
            and is_within(self.owner, 0, last)
            and is_within(self.copy, NO_ROW, last)
        )

    def of_kind(self, kind: SyncKind) -> "Syncs":
        """Select the syncs of one kind."""
        return self.select(self.kind == kind)


def find_syncs(events: EventTable, tree: CallTree, launches: Launches) -> Syncs:
    """Find the calls that block the host until a device has finished.

    These are synchronizing functions, copies that are synchronous by name, and copies between a
    device and pageable memory. A blocking call within another (a driver call of a runtime call) is
    part of the outer one.

    Source: "API synchronization behavior" in the CUDA Runtime API reference.
    """
    copies, copy_calls = _find_host_copies(events, launches)
    rows = outermost_calls(events, tree, _find_blocking_rows(events, launches))
    innermost = tree.innermost_op[rows]

    # A read counts even if it is a copy, as the user called it.
    read = tree.outermost(reads(events, tree))[rows]
    copy = _find_awaited_copies(events, launches, rows, copies, copy_calls, tree.innermost_op)

    to_host, to_device = _named(events, _TO_HOST, copy), _named(events, TO_DEVICE, copy)
    is_explicit = (innermost == NO_ROW) & are_among(rows, EXPLICIT_SYNC.rows(events))
    kind = np.select(
        [read != NO_ROW, is_explicit, to_host, to_device],
        [SyncKind.READ, SyncKind.EXPLICIT, SyncKind.TO_HOST, SyncKind.TO_DEVICE],
        SyncKind.OTHER,
    )

    outermost = tree.outermost(rows_named(events, COPYING, Category.OP))[rows]
    owner = np.select(
        [read != NO_ROW, outermost != NO_ROW, innermost != NO_ROW],
        [read, outermost, innermost],
        rows,
    )

    return Syncs(rows, kind.astype(np.uint8), owner.astype(np.int32), copy)


def outermost_calls(events: EventTable, tree: CallTree, calls: Rows) -> Rows:
    """Select the calls that are not within another of them. Both ascending."""
    is_call = marked(calls, len(events))[:-1]
    return np.asarray(calls[tree.enclosing(is_call)[calls] == NO_ROW])


def reads(events: EventTable, tree: CallTree) -> Mask:
    """Find operators that return a value to the host, or would for a tensor on a device.

    Nested operators are all marked, and indexing if it uses a mask. Shape ``(n,)``.
    """
    is_read = rows_named(events, _READ, Category.OP)
    nonzero = np.flatnonzero(rows_named(events, _NONZERO, Category.OP))
    masked = tree.outermost(rows_named(events, _INDEX, Category.OP))[nonzero]
    is_read[masked[masked != NO_ROW]] = True
    return is_read


def find_user_reads(events: EventTable, tree: CallTree) -> Rows:
    """Find operators that return a value to the host and are called by user code, ascending.

    Excluded are calls within another operator, an optimizer's step or a loader, whose iterator
    draws a seed when it is created: they read values that are on the host regardless of the model's
    device, such as an optimizer's step count or a sampler's random seed.
    """
    in_library = rows_named(events, _LIBRARY, Category.ANNOTATION, Category.OP)
    within_library = tree.nearest(in_library) != NO_ROW
    within_op = tree.op_around != NO_ROW
    rows = np.flatnonzero(reads(events, tree) & ~within_library & ~within_op)

    python = (events.category == Category.PYTHON) & ~rows_named(events, _BUILTIN, Category.PYTHON)
    caller = tree.nearest(python)[rows]
    of_loader = names_matching(events, _LOADER)[events.name[caller]]
    return np.asarray(rows[(caller == NO_ROW) | ~of_loader])


def find_reads_before_indexing(events: EventTable, rows: Rows) -> Rows:
    """Find reads immediately followed by an index or a slice on the same thread.

    ``x[i]`` and ``x[i : i + n]`` read a tensor ``i``: ``i.__index__()`` runs ``aten::item``, and
    the next operator of the thread is ``aten::select`` or ``aten::slice``.

    Source: ``torch/_tensor.py`` (``Tensor.__index__``), ``python_variable_indexing.cpp``.

    Returns:
        Pairs of a read and the operator that follows it. Shape ``(k, 2)``.
    """
    ops = events.rows_of(Category.OP)
    ops = events.sort_by_thread(ops)
    is_read = rows_named(events, _ITEM, Category.OP)[ops]

    # The position of the next operator that is not a read.
    following = np.where(is_read, len(ops), np.arange(len(ops)))
    following = np.minimum.accumulate(following[::-1])[::-1]

    places = np.flatnonzero(np.isin(ops, rows) & (following < len(ops)))
    pairs = np.stack((ops[places], ops[following[places]]), axis=1)
    is_same = events.lane[pairs[:, 0]] == events.lane[pairs[:, 1]]
    return np.asarray(pairs[is_same & rows_named(events, _INDEXING, Category.OP)[pairs[:, 1]]])


def find_calls_by_profiler(
    events: EventTable, tree: CallTree, launches: Launches, calls: Rows
) -> Mask:
    """Find the profiler's own synchronizing calls at the end of a recording. Shape of ``calls``.

    With stacks its Python frames show them. Without stacks they are device-wide synchronizations
    after the last launch.

    Source: ``torch/autograd/profiler.py`` (``profile.__exit__`` synchronizes each used device).
    """
    if events.has_python_calls:
        frame = tree.nearest(rows_named(events, _PROFILER, Category.PYTHON))[calls]
        return np.asarray((frame != NO_ROW) & (events.end_ns[calls] <= events.end_ns[frame]))

    last_ns = int(events.ts_ns[launches.calls].max(initial=0))
    of_device = np.isin(calls, DEVICE_SYNC.rows(events))
    return np.asarray(of_device & (events.ts_ns[calls] > last_ns) & (tree.parent[calls] == NO_ROW))


def are_followed_by_work(events: EventTable, launches: Launches, calls: Rows) -> Mask:
    """Return whether more device work is launched after each call returns. Shape of ``calls``.

    A synchronization without later work, such as at the end of a benchmark, delays nothing.
    """
    last_ns = int(events.ts_ns[launches.calls].max(initial=0))
    return np.asarray(events.end_ns[calls] <= last_ns)


def are_preceded_by_work(events: EventTable, launches: Launches, calls: Rows) -> Mask:
    """Return whether device work is launched before each call in the recording. Shape of ``calls``.

    The first synchronization of a benchmark only waits for work from before the recording.
    """
    first_ns = int(events.ts_ns[launches.calls].min(initial=np.iinfo(np.int64).max))
    return np.asarray(events.ts_ns[calls] > first_ns)


def sizes_of(events: EventTable, copies: Rows | Int32s) -> Int64s:
    """Return the bytes of each copy, 0 where its size is not known. Shape of ``copies``."""
    n_bytes = events.n_bytes.at(copies)
    return np.where(n_bytes == MISSING, 0, n_bytes)


def bytes_of(events: EventTable, copies: Rows | Int32s) -> int:
    """Return the total bytes of some copies, ignoring copies of unknown size."""
    return int(sizes_of(events, copies).sum())


def is_pageable(events: EventTable, copies: Int32s) -> Mask:
    """Return which copies involve pageable memory, by name. Shape of ``copies``.

    ROCm only writes ``Host``. Such a copy counts as pageable unless its name says pinned.
    """
    host = _named(events, _TO_HOST, copies) | _named(events, TO_DEVICE, copies)
    return np.asarray(host & ~_named(events, _PINNED, copies))


def _named(events: EventTable, pattern: re.Pattern[str], rows: Int32s | Rows) -> Mask:
    """Return which rows have a matching name; :data:`NO_ROW` has none. Shape of ``rows``."""
    named = names_matching(events, pattern)
    return np.asarray((rows != NO_ROW) & named[events.name[rows]])


def _find_host_copies(events: EventTable, launches: Launches) -> tuple[Int32s, Int32s]:
    """Find copies between host and device with a known call, and their calls."""
    is_copy = (events.category[launches.work] == Category.MEMCPY) & (launches.launch != NO_ROW)
    copies = launches.work[is_copy].astype(np.int32)
    is_host_copy = _named(events, _TO_HOST, copies) | _named(events, TO_DEVICE, copies)
    return copies[is_host_copy], launches.launch[is_copy][is_host_copy]


def _find_blocking_rows(events: EventTable, launches: Launches) -> Rows:
    from_pageable = launches.launch[pageable_to_device(events, launches)]
    from_pageable = from_pageable[from_pageable != NO_ROW]
    return united(blocking_calls(events, launches), from_pageable)


def _find_awaited_copies(
    events: EventTable,
    launches: Launches,
    rows: Rows,
    copies: Int32s,
    copy_calls: Int32s,
    op_of: Int32s,
) -> Int32s:
    """Find the copy that each blocking call waits for.

    It is the call's own copy, or else the copy of the last launching call before it on the same
    thread, if both are in the same operator: ``copy_`` copies and then synchronizes the stream. A
    call after another launch, such as when cuDNN measures its algorithms, waits for that launch.

    Args:
        rows: The blocking calls.
        copies: Copies between host and device.
        op_of: The innermost operator of every row.
    """
    copy_of_call = np.full(len(events), NO_ROW, dtype=np.int32)
    copy_of_call[copy_calls] = copies

    # Without a copy of its own, a call waits for the launch right before it.
    before = _find_last_before(events, distinct(launches.calls), rows)
    in_same_op = (before != NO_ROW) & (op_of[rows] != NO_ROW) & (op_of[before] == op_of[rows])
    waited_for = np.where(in_same_op, copy_of_call[before], NO_ROW)
    return np.where(copy_of_call[rows] != NO_ROW, copy_of_call[rows], waited_for)


def _find_last_before(events: EventTable, calls: Int32s, rows: Rows) -> Int32s:
    """Find the last call that began before each row on its thread, or :data:`NO_ROW`."""
    if not len(calls):
        return np.full(len(rows), NO_ROW, dtype=np.int32)

    both = np.concatenate((rows, calls))
    order = np.lexsort((events.ts_ns[both], events.lane[both]))
    is_call = order >= len(rows)
    latest = np.maximum.accumulate(np.where(is_call, np.arange(len(both)), NO_ROW))

    last_call = np.where(latest == NO_ROW, NO_ROW, both[order[latest]])
    last_call[(latest == NO_ROW) | (events.lane[last_call] != events.lane[both[order]])] = NO_ROW
    before = np.empty(len(both), dtype=np.int32)
    before[order] = last_call
    return before[: len(rows)]


def copies_named(events: EventTable, launches: Launches, pattern: re.Pattern[str]) -> Mask:
    """Return which device work is a copy with a matching name. Shape of ``launches.work``."""
    return rows_named(events, pattern, Category.MEMCPY)[launches.work]


def pageable_to_host(events: EventTable, launches: Launches) -> Mask:
    """Return which device work is a copy into pageable host memory. Shape of ``launches.work``."""
    return copies_named(events, launches, _PAGEABLE_TO_HOST)


def pageable_to_device(events: EventTable, launches: Launches) -> Mask:
    """Return which device work is a copy from pageable host memory. Shape of ``launches.work``."""
    return copies_named(events, launches, _PAGEABLE_TO_DEVICE)


def blocking_calls(events: EventTable, launches: Launches) -> Rows:
    """Find runtime calls that block the host until a device has finished, ascending.

    These are explicit synchronization, synchronous copies, and asynchronous copies into pageable
    memory, which return only once the copy has completed.

    Source: "API synchronization behavior" in the CUDA Runtime API reference: transfers from device
    memory to pageable host memory return only once the copy has completed.
    """
    into_pageable = launches.launch[pageable_to_host(events, launches)]
    copies = common(COPY.rows(events), into_pageable)
    return distinct(
        np.concatenate((EXPLICIT_SYNC.rows(events), BLOCKING_COPY.rows(events), copies))
    )
