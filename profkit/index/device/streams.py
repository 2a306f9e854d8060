"""Activity of each device over its span: busy, computing, communicating, copying."""

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.distinct import by_number, distinct, numbered
from profkit.index.intervals import Intervals, complement, covered_within, union
from profkit.index.launches import Launches
from profkit.model.events import MISSING, Category, EventTable, Int32s, Mask, Rows


@dataclass(frozen=True)
class DeviceActivity:
    """One device over its span, from its first work to its last.

    Attributes:
        device: The device's ordinal.
        rows: Its kernels, copies and fills, ascending. Shape ``(d,)``.
        start_ns: Start of the first.
        end_ns: End of the last.
        busy: Time in which any of them ran.
        compute: Time in which a kernel other than a collective ran.
        communication: Time in which a collective kernel ran.
        memcpy: Time in which a copy ran.
    """

    device: int
    rows: Rows
    start_ns: int
    end_ns: int
    busy: Intervals
    compute: Intervals
    communication: Intervals
    memcpy: Intervals
    n_kernels: int
    n_memcpy: int
    n_memset: int

    @property
    def span_ns(self) -> int:
        """Return the time from the start of its first work to the end of its last."""
        return self.end_ns - self.start_ns

    @property
    def idle(self) -> Intervals:
        """Return the time of the span in which nothing ran."""
        return complement(self.busy, self.start_ns, self.end_ns)

    @property
    def overlap_ns(self) -> int:
        """Return the time in which compute and collective kernels both ran."""
        starts_ns, ends_ns = self.communication.starts_ns, self.communication.ends_ns
        return int(covered_within(self.compute, starts_ns, ends_ns).sum())


def device_of(events: EventTable, rows: Rows) -> Int32s:
    """Return the ordinal of the device of each row of device work. Shape of ``rows``.

    Without a device, an event has the ordinal as its process: Kineto writes a device's work under a
    process numbered like the device.
    """
    device = events.device.at(rows)
    is_unnamed = device == MISSING
    if is_unnamed.any():
        pids = np.array([_ordinal(lane.pid) for lane in events.lanes], dtype=np.int64)
        device[is_unnamed] = pids[events.lane[rows[is_unnamed]]]
    return device.astype(np.int32)


def _ordinal(process: str) -> int:
    pid = process.removeprefix("Device ")
    return int(pid) if pid.isdecimal() and len(pid) < 4 else 0  # noqa: PLR2004  (a device, not a pid)


def stream_numbers(events: EventTable, rows: Rows) -> Int32s:
    """Return the number of each row's stream over all devices. Shape of ``rows``.

    An event without a stream has the stream as its thread.
    """
    stream = events.stream.at(rows)
    stream = np.where(stream == MISSING, events.lane[rows], stream)
    streams, number = numbered(stream - stream.min(initial=0))

    # Each device counts its streams from the same number.
    both = device_of(events, rows).astype(np.int64) * len(streams) + number
    return numbered(both)[1].astype(np.int32)


def sort_by_stream(events: EventTable, rows: Rows) -> tuple[Int32s, Rows]:
    """Sort device work by stream, then start: return each row's stream, and the order."""
    order = np.argsort(events.ts_ns[rows], kind="stable")
    stream = stream_numbers(events, rows)
    # Work of one stream keeps the order of its starts.
    return stream, order[by_number(stream[order])]


def find_device_activity(
    events: EventTable, launches: Launches, communication: Mask
) -> tuple[DeviceActivity, ...]:
    """Find the activity of every device with work, by ordinal."""
    if not len(launches.work):
        return ()
    device = device_of(events, launches.work)
    return tuple(
        _measure_activity(events, int(number), launches.work[device == number], communication)
        for number in distinct(device)
    )


def _measure_activity(
    events: EventTable, device: int, rows: Rows, communication: Mask
) -> DeviceActivity:
    category = events.category[rows]
    is_kernel = category == Category.KERNEL
    is_collective = communication[rows]

    def cover(mask: Mask) -> Intervals:
        return union(events.ts_ns[rows[mask]], events.end_ns[rows[mask]])

    return DeviceActivity(
        device=device,
        rows=rows,
        start_ns=int(events.ts_ns[rows].min()),
        end_ns=int(events.end_ns[rows].max()),
        busy=cover(np.ones(len(rows), dtype=np.bool_)),
        compute=cover(is_kernel & ~is_collective),
        communication=cover(is_kernel & is_collective),
        memcpy=cover(category == Category.MEMCPY),
        n_kernels=int(is_kernel.sum()),
        n_memcpy=int((category == Category.MEMCPY).sum()),
        n_memset=int((category == Category.MEMSET).sum()),
    )
