"""A recorded trace, independent of the producer."""

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.model.capture_info import CaptureInfo
from profkit.model.events import EventTable, MemoryTable

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class DeviceInfo:
    """A device as the recording describes it. Unknown figures are None.

    Attributes:
        index: The device's ordinal.
        name: Such as ``NVIDIA H200``; empty where the recording leaves it blank.
        total_bytes: Memory of the device.
        n_sms: Number of streaming multiprocessors, or compute units.
        max_threads_per_sm: Maximum resident threads on each.
        compute_capability: Major and minor number (CUDA).
    """

    index: int
    name: str
    total_bytes: int | None = None
    n_sms: int | None = None
    max_threads_per_sm: int | None = None
    compute_capability: tuple[int, int] | None = None


@dataclass(frozen=True)
class RecordedWith:
    """The recording options. None where the file does not have them."""

    stacks: bool | None = None
    shapes: bool | None = None
    memory: bool | None = None
    modules: bool | None = None
    flops: bool | None = None


LOST_TIME: Final = "the profiler has lost its time"
"""The reason of events of a device whose trace was exported after another profiler had stopped."""


@dataclass(frozen=True)
class InvalidEvent:
    """An event with invalid times, excluded from all tables and totals.

    Attributes:
        position: Index in the file's ``traceEvents``.
        dur_ns: Duration as written, in nanoseconds; None where it is not a number.
        reason: Why the times are invalid, in a few words.
    """

    position: int
    name: str
    dur_ns: int | None
    reason: str


@dataclass(frozen=True)
class LoadNotes:
    """Notes of the reader, for rules on the recording itself.

    Attributes:
        n_events: Number of entries in ``traceEvents``, of every kind.
        n_complete: Number of complete events among them, as written.
        n_skipped: Number of entries that are not events.
        n_invalid: Number of events with invalid times; they are in no table.
        invalid: The first events with invalid times.
        n_unpaired: Number of begin events without an end, and end events without a begin.
        categories: Number of complete events by category as written; ``""`` without a category.
        uncompressed_bytes: Size of the JSON text.
        messages: Kineto's messages about the recording (``INFO``, ``WARNING``, ``ERROR`` at the top
            level), by level.
        truncated: Whether the file ended before its JSON did.
        n_unread_bytes: Size of what follows the end of the trace, such as another trace.
        invalid_metadata: Parts of the key ``profkit`` that are invalid and were dropped, by name;
            ``profkit`` itself if nothing of it is used.
    """

    n_events: int
    n_complete: int
    n_skipped: int = 0
    n_invalid: int = 0
    invalid: tuple[InvalidEvent, ...] = ()
    n_unpaired: int = 0
    categories: Mapping[str, int] = field(default_factory=dict)
    uncompressed_bytes: int = 0
    messages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    truncated: bool = False
    n_unread_bytes: int = 0
    invalid_metadata: tuple[str, ...] = ()
    stages_ns: Mapping[str, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Trace:
    """A trace.

    Attributes:
        base_ns: Nanoseconds since 1970 of the trace's start, which is 0 in every ``ts_ns``.
        devices: Device descriptions, by ordinal.
        recorded_with: The recording options.
        torch: PyTorch's version where it is known.
        rank: Rank in a distributed job, or None.
        world_size: Number of ranks in that job, or None.
        groups: The ranks of its process groups by name, as far as they are recorded.
        versions: Versions of CUDA, driver, CUPTI and ROCm, as recorded.
        capture: Data that profkit added when it recorded the trace, or None.
        notes: Notes of the reader.
    """

    path: str
    events: EventTable
    memory: MemoryTable
    base_ns: int
    devices: Mapping[int, DeviceInfo]
    recorded_with: RecordedWith
    torch: str | None
    rank: int | None
    world_size: int | None
    host: str | None
    groups: Mapping[str, tuple[int, ...]]
    versions: Mapping[str, str]
    capture: CaptureInfo | None
    notes: LoadNotes

    def to_pandas(self) -> "pd.DataFrame":
        """Return the trace's complete events, see :meth:`EventTable.to_pandas`."""
        return self.events.to_pandas()


_INT32S: Final = np.zeros(0, dtype=np.int32)
_INT64S: Final = np.zeros(0, dtype=np.int64)


def _no_events() -> EventTable:
    empty: dict[str, Any] = dict.fromkeys(("position", "name", "lane"), _INT32S)
    empty |= dict.fromkeys(("ts_ns", "dur_ns"), _INT64S)
    return EventTable(category=np.zeros(0, dtype=np.uint8), names=(), lanes=(), **empty)


NO_TRACE: Final = Trace(
    path="",
    events=_no_events(),
    memory=MemoryTable(
        *(_INT32S, _INT32S, _INT64S, _INT64S, _INT64S, _INT32S, _INT32S, _INT64S, _INT64S)
    ),
    base_ns=0,
    devices={},
    recorded_with=RecordedWith(),
    torch=None,
    rank=None,
    world_size=None,
    host=None,
    groups={},
    versions={},
    capture=None,
    notes=LoadNotes(n_events=0, n_complete=0),
)
"""A trace without events, for recordings without one."""
