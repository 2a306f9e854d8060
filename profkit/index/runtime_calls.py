"""Kinds of calls to the vendors' runtimes and drivers, by name."""

import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from profkit.model.events import HOST_CALLS, Category, EventTable, Int32s, Int64s, Mask, Rows
from profkit.model.torch_names import BACKWARD, OPTIMIZER_STEP
from profkit.patterns import regex


class CallKind:
    """Calls of one kind.

    Source: the names in the CUDA Runtime API reference (Device, Stream, Event, Memory and Graph
    Management) and in HIP's, which follows it; for waits also the Level Zero and Unified Runtime
    specifications, the AscendCL API reference and the CNRT Developer Guide.
    """

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern

    def matches(self, name: str) -> bool:
        """Return whether a call of this name is of this kind."""
        return self._pattern.search(name) is not None

    def rows(self, events: EventTable) -> Rows:
        """Return runtime and driver calls of this kind, ascending."""
        return np.flatnonzero(rows_named(events, self._pattern, *HOST_CALLS))


EXPLICIT_SYNC: Final = CallKind(
    regex(
        r"^[a-z]+(Device|Stream|Event|Ctx)Synchronize"
        r"|^(AscendCL@)?aclrtSynchronize(Device|Stream|Event)"
        r"|^cn(rt)?(QueueSync|SyncDevice|CtxSync|WaitNotifier)"
        r"|^ze\w*Synchronize$|^urQueueFinish$|^urEventWait$|^piQueueFinish$|^piEventsWait$"
    )
)
"""Explicit synchronization with a device, a stream or an event: CUDA's names, which HIP and most
others prefix differently; CANN's; Cambricon's; names of Level Zero (an XPU's driver) and SYCL's
runtime (UR, formerly PI)."""
DEVICE_SYNC: Final = CallKind(
    regex(
        r"^[a-z]+DeviceSynchronize|^cuCtxSynchronize|^(AscendCL@)?aclrtSynchronizeDevice|^cnrtSyncDevice"
    )
)
"""Explicit synchronization with a whole device."""
EVENT_SYNC: Final = CallKind(
    regex(
        r"^[a-z]+EventSynchronize|^(AscendCL@)?aclrtSynchronizeEvent|^cn(rt)?WaitNotifier"
        r"|^zeEventHostSynchronize$|^urEventWait$|^piEventsWait$"
    )
)
"""Explicit synchronization with an event."""
WAIT_EVENT: Final = CallKind(regex(r"^[a-z]+StreamWaitEvent"))
"""Makes later work of a stream wait for an event of another stream; the host goes on."""
BLOCKING_COPY: Final = CallKind(
    regex(r"^(cudaMemcpy|hipMemcpy|hipMemcpyWithStream|cudaMemcpy2D)(_v\d+)?$")
)
"""A copy that is synchronous for any kind of memory."""
ALLOCATOR: Final = CallKind(
    regex(
        r"^(cuda|hip)(Malloc|Free|HostAlloc|HostMalloc|FreeHost|HostFree|HostRegister"
        r"|HostUnregister)(?!.*Async)"
        r"|^cuMem(Create|Release|Map|Unmap|AddressReserve|AddressFree|SetAccess)"
    )
)
"""Allocation or release of driver memory."""
GRAPH_LAUNCH: Final = CallKind(regex(r"^(cuda|hip|cu)GraphLaunch"))
LAUNCH: Final = CallKind(regex(r"Launch|[Mm]em(cpy|set)|Enqueue|^runFunction"))
"""Starts device work: a kernel, a graph, a copy or a fill, by the names of all vendors."""
COPY: Final = CallKind(regex(r"^(cuda|hip|cu)Memcpy"))
CUDA: Final = CallKind(regex(r"^cu(da)?[A-Z]"))
"""Any call of CUDA's runtime or driver."""
HIP: Final = CallKind(regex(r"^hip[A-Z]"))
"""Any call of HIP's runtime."""


def names_matching(events: EventTable, pattern: re.Pattern[str], *categories: Category) -> Mask:
    """Return which interned names match. One entry per name; read-only.

    Each name is searched once for a pattern: a trace may have a million different ones.

    Args:
        categories: Categories whose names matter. Other names may match or not.
    """
    key = pattern, categories
    if key not in events.matches:
        names = events.names
        # Python calls have most of the names, and few patterns are for them.
        if categories:
            numbers = np.flatnonzero(events.has_name[list(categories)].any(axis=0))
        else:
            numbers = np.arange(len(names))
        matches = np.zeros(len(names), dtype=np.bool_)
        matches[[number for number in numbers.tolist() if pattern.search(names[number])]] = True
        matches.setflags(write=False)
        events.matches[key] = matches
    return events.matches[key]


def rows_named(events: EventTable, pattern: re.Pattern[str], *categories: Category) -> Mask:
    """Return which rows of some categories have a matching name. Shape ``(n,)``."""
    named = names_matching(events, pattern, *categories)

    # Most patterns match no name of a category: then no row is looked at.
    mask = np.zeros(len(events), dtype=np.bool_)
    for category in categories:
        if named[events.has_name[category]].any():
            rows = events.rows_by_category[category]
            mask[rows[named[events.names_by_category[category]]]] = True
    return mask


def map_names(
    events: EventTable, rows: Rows | Int32s, value_of: Callable[[str], object], kind: npt.DTypeLike
) -> npt.NDArray[Any]:
    """Return a value of each row's name, computed once for each different name. Shape of ``rows``.

    Args:
        value_of: Returns the value of a name.
        kind: The type of the values.
    """
    numbers, place = np.unique(events.name[rows], return_inverse=True)
    values = [value_of(events.names[number]) for number in numbers.tolist()]
    return np.asarray(np.array(values, dtype=kind)[place])


def are_optimizer_steps(events: EventTable) -> Mask:
    """Return which rows are calls of ``Optimizer.step``. Shape ``(n,)``."""
    return rows_named(events, OPTIMIZER_STEP, Category.ANNOTATION, Category.OP)


def updates_begin_ns(events: EventTable, step_calls: Rows) -> Int64s:
    """Return when each call of ``Optimizer.step`` begins to update parameters. Shape of the calls.

    That is the end of the last backward pass within the call, or else the call's start: a closure
    runs forward and backward within ``step()``, the backward on any thread.
    """
    backward = np.flatnonzero(rows_named(events, BACKWARD, Category.OP))
    backward = backward[np.argsort(events.ts_ns[backward], kind="stable")]
    ends_ns = np.maximum.accumulate(np.append(-1, events.end_ns[backward]))

    n_before = np.searchsorted(events.ts_ns[backward], events.end_ns[step_calls])
    last_ns = np.minimum(ends_ns[n_before], events.end_ns[step_calls])
    return np.maximum(events.ts_ns[step_calls], last_ns)
