"""The calls in which the host waits for a device, and what made it wait."""

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from profkit.index.host.nesting import CallTree
from profkit.index.launches import Launches
from profkit.index.runtime_calls import (
    BLOCKING_COPY,
    COPY,
    DEVICE_SYNC,
    EXPLICIT_SYNC,
    names_matching,
)
from profkit.model.events import MISSING, NO_ROW, Category, EventTable, Int32s, Mask, Rows
from profkit.model.torch_names import BUILTIN_PREFIX, DATA_WAITS, OPTIMIZER

_READ: Final = re.compile(
    r"^aten::(item|_local_scalar_dense|is_nonzero|nonzero(_numpy)?|argwhere|masked_select"
    r"|_?unique(2|_dim|_consecutive|_dim_consecutive)?|equal|allclose|bincount|histc"
    r"|repeat_interleave|one_hot)$"
)
"""Operators that hand a value or a shape that depends on values to the host.

Source: ``aten/src/ATen/native/cuda/CUDAScalar.cu`` (``item``), ``Nonzero.cu``, ``Unique.cu``,
``Equal.cpp``, ``SummaryOps.cu`` (``bincount``), ``native/Repeat.cpp``, ``native/Onehot.cpp``;
``torch.nonzero`` says in its documentation that it makes the host and the device synchronize.
"""
_INDEX: Final = re.compile(r"^aten::(_?index(_put_?|_put_impl_)?|where)$")
"""Operators that read only when they are indexed with a mask: then ``nonzero`` is within."""
_LIBRARY: Final = re.compile(rf"{OPTIMIZER.pattern}|{DATA_WAITS.pattern}")
_LOADER: Final = re.compile(r"(^|[/\\])torch[/\\]utils[/\\]data[/\\]")
_BUILTIN: Final = re.compile(rf"^{BUILTIN_PREFIX}")
_PROFILER: Final = re.compile(r"^(torch[/\\](autograd[/\\]profiler|profiler[/\\])|profkit[/\\])")
_NONZERO: Final = re.compile(r"^aten::nonzero(_numpy)?$")
_TO_HOST: Final = re.compile(r"DtoH|Device -> (Pageable|Pinned|Host)|Memcpy D2[MH]\b")
_TO_DEVICE: Final = re.compile(r"HtoD|(Pageable|Pinned|Host) -> Device|Memcpy [MH]2D\b")
_PINNED: Final = re.compile(r"Pinned|\bHOST\b")
"""An XPU's profiler calls memory ``HOST`` that the driver allocated, which is pinned, and any other
of the host ``MEMORY(Unknown)``. Source: ``pti_view_memory_type`` of PTI-GPU."""
_PAGEABLE_TO_HOST: Final = re.compile(r"DtoH \(Device -> Pageable\)")
_PAGEABLE_TO_DEVICE: Final = re.compile(r"HtoD \(Pageable -> Device\)")
_COPYING: Final = re.compile(r"^aten::(to|_to_copy|copy_|_copy_from|cpu|cuda|clone|contiguous)$")
"""Operators that copy a tensor, of which the outermost is what the user wrote."""


class SyncKind(IntEnum):
    """What made the host wait."""

    OTHER = 0
    """A wait inside an operator that is none of the others."""
    READ = 1
    """A value was read, such as by ``item``."""
    TO_HOST = 2
    """A tensor was copied to the host."""
    TO_DEVICE = 3
    """A tensor was copied to the device."""
    EXPLICIT = 4
    """A synchronizing call outside any operator: the program asked for it."""


@dataclass(frozen=True)
class Syncs:
    """Calls in which the host waits.

    Attributes:
        rows: Rows of runtime or driver calls, ascending. Shape ``(k,)``.
        kind: A :class:`SyncKind` each. Shape ``(k,)``.
        owner: The row that stands for the wait: the outermost operator of its kind, as the user
            wrote it, or the call itself. Shape ``(k,)``.
        copy: The copy that was waited for: a row of device work, or :data:`NO_ROW`. Shape ``(k,)``.
    """

    rows: Rows
    kind: npt.NDArray[np.uint8]
    owner: Int32s
    copy: Int32s

    def select(self, kept: Mask) -> "Syncs":
        """Some of them. ``kept`` has shape ``(k,)``."""
        return Syncs(self.rows[kept], self.kind[kept], self.owner[kept], self.copy[kept])

    def of_kind(self, kind: SyncKind) -> "Syncs":
        """Those of one kind."""
        return self.select(self.kind == kind)


def find_syncs(events: EventTable, tree: CallTree, launches: Launches) -> Syncs:
    """Find the calls in which the host waits for a device.

    A call waits when it is a synchronizing function, or a copy that blocks by its name, or a copy
    between a device and pageable memory. Where one waiting call makes another (a runtime its
    driver) they are one wait: the outer one.

    Args:
        launches: Which call launched which copy.

    Source: "API synchronization behavior" in the CUDA Runtime API reference.
    """
    copies, copy_calls = _copies(events, launches)
    rows = outermost_calls(events, tree, _waiting_rows(events, launches))
    is_op = events.category == Category.OP
    innermost = tree.nearest(is_op)[rows]
    read = tree.outermost(reads(events, tree))[rows]
    copy = _copy_of(rows, innermost, copies, copy_calls, tree.nearest(is_op))
    to_host, to_device = _named(events, _TO_HOST, copy), _named(events, _TO_DEVICE, copy)
    explicit = (innermost == NO_ROW) & np.isin(rows, EXPLICIT_SYNC.rows(events))
    kind = np.select(
        [read != NO_ROW, explicit, to_host, to_device],
        [SyncKind.READ, SyncKind.EXPLICIT, SyncKind.TO_HOST, SyncKind.TO_DEVICE],
        SyncKind.OTHER,
    )
    copying = is_op & names_matching(events.names, _COPYING)[events.name]
    outermost = tree.outermost(copying)[rows]
    owner = np.select(
        [read != NO_ROW, outermost != NO_ROW, innermost != NO_ROW],
        [read, outermost, innermost],
        rows,
    )
    return Syncs(rows, kind.astype(np.uint8), owner.astype(np.int32), copy)


def outermost_calls(events: EventTable, tree: CallTree, calls: Rows) -> Rows:
    """Those of some calls that none of the others made. Rows, ascending.

    Args:
        calls: Rows of calls, ascending. Shape ``(k,)``.
    """
    wanted = np.zeros(len(events), dtype=np.bool_)
    wanted[calls] = True
    return np.asarray(calls[tree.enclosing(wanted)[calls] == NO_ROW])


def reads(events: EventTable, tree: CallTree) -> Mask:
    """Rows of operators that hand a value to the host, or would if it were on a device.

    Returns:
        Shape ``(n,)``. Of nested ones each is marked; indexing is marked where it holds a mask.
    """
    is_op = events.category == Category.OP
    direct = is_op & names_matching(events.names, _READ)[events.name]
    indexing = is_op & names_matching(events.names, _INDEX)[events.name]
    nonzero = np.flatnonzero(is_op & names_matching(events.names, _NONZERO)[events.name])
    masked = tree.outermost(indexing)[nonzero]
    direct[masked[masked != NO_ROW]] = True
    return np.asarray(direct)


def reads_of_the_user(events: EventTable, tree: CallTree) -> Rows:
    """Operators that hand a value to the host and were called by the program itself, ascending.

    Left out is what PyTorch calls for itself: within another operator, an optimizer's step or a
    loader, whose iterator draws a seed when it is made. It reads values that stay on the host
    wherever the model is, such as an optimizer's count of steps or a sampler's random seed.
    """
    library = names_matching(events.names, _LIBRARY)[events.name]
    host = np.isin(events.category, (Category.ANNOTATION, Category.OP))
    within_library = tree.nearest(host & library) != NO_ROW
    within_op = tree.enclosing(events.category == Category.OP) != NO_ROW
    rows = np.flatnonzero(reads(events, tree) & ~within_library & ~within_op)
    python = events.category == Category.PYTHON
    caller = tree.nearest(python & ~names_matching(events.names, _BUILTIN)[events.name])[rows]
    of_loader = names_matching(events.names, _LOADER)[events.name[caller]]
    own: Rows = rows[(caller == NO_ROW) | ~of_loader]
    return own


def called_by_profiler(events: EventTable, tree: CallTree, launches: Launches, calls: Rows) -> Mask:
    """Which synchronizing calls are the profiler's own, with which it ends a recording.

    With stacks its Python frames tell. Without them it is a call of a whole device that nothing
    is launched after.

    Args:
        launches: Device work and its launches.
        calls: Rows of synchronizing calls. Shape ``(k,)``.

    Source: ``torch/autograd/profiler.py`` (``profile.__exit__`` synchronizes each used device).

    Returns:
        Shape ``(k,)``.
    """
    frames = events.category == Category.PYTHON
    profiler = frames & names_matching(events.names, _PROFILER)[events.name]
    if frames.any():
        frame = tree.nearest(profiler)[calls]
        return np.asarray((frame != NO_ROW) & (events.end_ns[calls] <= events.end_ns[frame]))
    launched = launches.launch[launches.launch != NO_ROW]
    last_ns = int(events.ts_ns[launched].max()) if len(launched) else 0
    of_device = np.isin(calls, DEVICE_SYNC.rows(events))
    return np.asarray(of_device & (events.ts_ns[calls] > last_ns) & (tree.parent[calls] == NO_ROW))


def bytes_of(events: EventTable, copies: Rows | Int32s) -> int:
    """Bytes that some copies move together; those of unknown size are left out."""
    n_bytes = events.n_bytes.at(copies)
    return int(n_bytes[n_bytes != MISSING].sum())


def is_pageable(events: EventTable, copies: Int32s) -> Mask:
    """Which copies touch pageable memory, by their names. Shape of ``copies``.

    ROCm only says ``Host``: such a copy counts, unless it says that the memory is pinned.
    """
    host = _named(events, _TO_HOST, copies) | _named(events, _TO_DEVICE, copies)
    return np.asarray(host & ~_named(events, _PINNED, copies))


def _named(events: EventTable, pattern: re.Pattern[str], rows: Int32s | Rows) -> Mask:
    """Which rows' names match; :data:`NO_ROW` matches nothing. Shape of ``rows``."""
    named = names_matching(events.names, pattern)
    return np.asarray((rows != NO_ROW) & named[events.name[rows]])


def _copies(events: EventTable, launches: Launches) -> tuple[Int32s, Int32s]:
    """Copies between host and device whose call is known, and their calls."""
    is_copy = (events.category[launches.work] == Category.MEMCPY) & (launches.launch != NO_ROW)
    copies = launches.work[is_copy].astype(np.int32)
    kept = _named(events, _TO_HOST, copies) | _named(events, _TO_DEVICE, copies)
    return copies[kept], launches.launch[is_copy][kept]


def _waiting_rows(events: EventTable, launches: Launches) -> Rows:
    from_pageable = launches.launch[pageable_to_device(events, launches)]
    from_pageable = from_pageable[from_pageable != NO_ROW]
    return np.union1d(blocking_calls(events, launches), from_pageable).astype(np.intp)


def _copy_of(
    rows: Rows, innermost: Int32s, copies: Int32s, copy_calls: Int32s, op_of: Int32s
) -> Int32s:
    """The copy that each waiting call is about: its own, else the last before it in its operator.

    Args:
        rows: The waiting calls.
        innermost: The innermost operator of each.
        copies: Copies between host and device.
        op_of: The innermost operator of every row.
    """
    own: dict[int, int] = dict(zip(copy_calls.tolist(), copies.tolist(), strict=True))
    by_op: dict[int, int] = dict(zip(op_of[copy_calls].tolist(), copies.tolist(), strict=True))
    by_op.pop(NO_ROW, None)
    pairs = zip(rows.tolist(), innermost.tolist(), strict=True)
    found = [own.get(row, by_op.get(op, NO_ROW)) for row, op in pairs]
    return np.array(found, dtype=np.int32)


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
