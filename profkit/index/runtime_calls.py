"""What the calls of the vendors' runtimes and drivers are for, by their names."""

import re
from collections.abc import Iterable
from typing import Final

import numpy as np

from profkit.model.events import Category, EventTable, Mask, Rows

_SYNC: Final = re.compile(
    r"^[a-z]+(Device|Stream|Event|Ctx)Synchronize"
    r"|^aclrtSynchronize(Device|Stream|Event)"
    r"|^cn(rt)?(QueueSync|SyncDevice|CtxSync|WaitNotifier)"
    r"|^ze\w*Synchronize$|^urQueueFinish$|^urEventWait$|^piQueueFinish$|^piEventsWait$"
)
"""CUDA's names, which HIP and most others put behind a prefix of their own; CANN's; Cambricon's;
those of Level Zero (an XPU's driver) and of SYCL's runtime, which was called PI before it was UR.
"""
_BLOCKING_COPY: Final = re.compile(
    r"^(cudaMemcpy|hipMemcpy|hipMemcpyWithStream|cudaMemcpy2D)(_v\d+)?$"
)
_DEVICE_SYNC: Final = re.compile(
    r"^[a-z]+DeviceSynchronize|^cuCtxSynchronize|^aclrtSynchronizeDevice|^cnrtSyncDevice"
)
_ALLOCATOR: Final = re.compile(
    r"^(cuda|hip)(Malloc|Free|HostAlloc|HostMalloc|FreeHost|HostFree|HostRegister|HostUnregister)"
    r"(?!.*Async)"
    r"|^cuMem(Create|Release|Map|Unmap|AddressReserve|AddressFree|SetAccess)"
)
_GRAPH_LAUNCH: Final = re.compile(r"^(cuda|hip|cu)GraphLaunch")
_COPY: Final = re.compile(r"^(cuda|hip|cu)Memcpy")
_CUDA: Final = re.compile(r"^cu(da)?[A-Z]")
_HIP: Final = re.compile(r"^hip[A-Z]")


class CallKind:
    """The calls of one kind.

    Source: the names in the CUDA Runtime API reference (Device, Stream, Event, Memory and Graph
    Management) and in HIP's, which follows it; of waits also those of the Level Zero and Unified
    Runtime specifications, the AscendCL API reference and the CNRT Developer Guide.
    """

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern

    def matches(self, name: str) -> bool:
        """Whether a call of this name is of this kind."""
        return self._pattern.search(name) is not None

    def rows(self, events: EventTable) -> Rows:
        """Runtime and driver calls of this kind, ascending."""
        return np.flatnonzero(rows_named(events, self._pattern, Category.RUNTIME, Category.DRIVER))


EXPLICIT_SYNC: Final = CallKind(_SYNC)
"""The host waits for a device, a stream or an event, because it says so."""
DEVICE_SYNC: Final = CallKind(_DEVICE_SYNC)
"""The host waits for a whole device."""
BLOCKING_COPY: Final = CallKind(_BLOCKING_COPY)
"""A copy that returns only when it is done, whatever the memory."""
ALLOCATOR: Final = CallKind(_ALLOCATOR)
"""Memory asked of the driver or given back to it."""
GRAPH_LAUNCH: Final = CallKind(_GRAPH_LAUNCH)
"""A whole graph launched at once."""
COPY: Final = CallKind(_COPY)
"""Any copy."""
CUDA: Final = CallKind(_CUDA)
"""Any call of CUDA's runtime or driver."""
HIP: Final = CallKind(_HIP)
"""Any call of HIP's."""


def names_matching(names: Iterable[str], pattern: re.Pattern[str]) -> Mask:
    """Which of the interned names match. One entry a name."""
    return np.fromiter((pattern.search(name) is not None for name in names), dtype=np.bool_)


def rows_named(events: EventTable, pattern: re.Pattern[str], *categories: Category) -> Mask:
    """Which rows of some categories have a name that matches. Shape ``(n,)``.

    Args:
        pattern: Searched for in each name once, however many rows have it.
    """
    named = names_matching(events.names, pattern)
    if not named.any():
        return np.zeros(len(events), dtype=np.bool_)
    return np.asarray(np.isin(events.category, categories) & named[events.name])
