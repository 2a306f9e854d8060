"""A recorded trace, whatever wrote it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from profkit.model.capture_info import CaptureInfo
from profkit.model.events import EventTable, MemoryTable, SparseColumn

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class DeviceInfo:
    """A device as the recording describes it. Figures it does not tell are None.

    Attributes:
        index: The device's ordinal.
        name: Such as ``NVIDIA H200``; empty where the vendor's tool leaves it blank.
        total_bytes: Memory on the device.
        n_sms: Streaming multiprocessors, or compute units.
        max_threads_per_sm: Threads that one of them can hold.
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
    """What the recording was asked to keep. None where the file does not say."""

    stacks: bool | None = None
    shapes: bool | None = None
    memory: bool | None = None
    modules: bool | None = None
    flops: bool | None = None


@dataclass(frozen=True)
class OddEvent:
    """An event whose times make no sense, set aside so that it does not become the total.

    Attributes:
        position: Place in the file's ``traceEvents``.
        name: Its name.
        dur_ns: Its length as written, in nanoseconds; None where that is no number.
        reason: What is wrong with it, in a few words.
    """

    position: int
    name: str
    dur_ns: int | None
    reason: str


@dataclass(frozen=True)
class LoadNotes:
    """What the loader met, for the rules on the recording's own health.

    Attributes:
        n_events: Entries of ``traceEvents``, of every kind.
        n_complete: Complete events among them, as written.
        n_skipped: Entries that are no events at all.
        n_odd: Events whose times make no sense; they are in no table.
        odd: The first of them.
        n_unpaired: Begins without an end, and ends without a begin.
        categories: Complete events by the category as written; no category is ``""``.
        uncompressed_bytes: Size of the JSON text.
        messages: What Kineto wrote into the trace of its own troubles (``INFO``, ``WARNING``,
            ``ERROR`` at the top level), by level.
        truncated: The file ended before its JSON did.
        stages_ns: How long each stage of reading took, in nanoseconds.
    """

    n_events: int
    n_complete: int
    n_skipped: int = 0
    n_odd: int = 0
    odd: tuple[OddEvent, ...] = ()
    n_unpaired: int = 0
    categories: Mapping[str, int] = field(default_factory=dict)
    uncompressed_bytes: int = 0
    messages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    truncated: bool = False
    stages_ns: Mapping[str, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Trace:
    """A trace, read once.

    Attributes:
        path: Where it came from.
        events: Its complete events.
        memory: Its ``[memory]`` events.
        base_ns: Nanoseconds since 1970 of the trace's start, which is 0 in every ``ts_ns``.
        devices: What the recording says of its devices, by ordinal.
        recorded_with: What it was asked to keep.
        torch: PyTorch's version where it is known.
        rank: Rank in a distributed job, or None.
        world_size: Ranks in that job, or None.
        host: The machine's name, or None.
        versions: Versions of CUDA, driver, CUPTI, ROCm as the recording has them.
        capture: What profkit wrote into the trace when it recorded it, else None.
        notes: What the loader met.
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
    versions: Mapping[str, str]
    capture: CaptureInfo | None
    notes: LoadNotes

    def to_pandas(self) -> "pd.DataFrame":
        """The trace's complete events, as :meth:`EventTable.to_pandas` has them."""
        return self.events.to_pandas()


def _no_events() -> EventTable:
    int32s, int64s = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
    nowhere = SparseColumn(int32s, int64s)
    return EventTable(
        position=int32s,
        category=np.zeros(0, dtype=np.uint8),
        name=int32s,
        lane=int32s,
        ts_ns=int64s,
        dur_ns=int64s,
        names=(),
        lanes=(),
        correlation=nowhere,
        external_id=nowhere,
        sequence=nowhere,
        forward_thread=nowhere,
        device=nowhere,
        stream=nowhere,
        n_bytes=nowhere,
        collective=nowhere,
        call_stack=nowhere,
        blocks_per_sm=nowhere,
        occupancy_percent=nowhere,
    )


def _no_memory() -> MemoryTable:
    int32s, int64s = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
    return MemoryTable(
        position=int32s,
        lane=int32s,
        ts_ns=int64s,
        n_bytes=int64s,
        address=int64s,
        device_type=int32s,
        device=int32s,
        total_allocated=int64s,
        total_reserved=int64s,
    )


NO_TRACE: Final = Trace(
    path="",
    events=_no_events(),
    memory=_no_memory(),
    base_ns=0,
    devices={},
    recorded_with=RecordedWith(),
    torch=None,
    rank=None,
    world_size=None,
    host=None,
    versions={},
    capture=None,
    notes=LoadNotes(n_events=0, n_complete=0),
)
"""What stands for a trace where there is none."""
