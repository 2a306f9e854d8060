"""Device work by stream, with the moment of its launch."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from profkit.index.device.launch_moments import launched_ns
from profkit.index.device.streams import stream_numbers
from profkit.index.launches import Launches
from profkit.index.replay.graph import NEVER
from profkit.model.events import MISSING, NO_ROW, EventTable, Int32s, Int64s, Mask, Rows


@dataclass(frozen=True)
class DeviceWork:
    """Device work by stream, in stream order.

    Attributes:
        rows: :data:`NO_ROW` for unrecorded work. Shape ``(w,)``.
        stream: Number of the stream. Shape ``(w,)``.
        start_ns: Shape ``(w,)``.
        end_ns: Shape ``(w,)``.
        launch: Row of the launch or :data:`NO_ROW`. Shape ``(w,)``.
        launched_ns: The moment of the launch that the work follows, see
            :mod:`~profkit.index.device.launch_moments`. ``NEVER`` without a launch. Shape ``(w,)``.
        may_be_lag: Unrecorded work that may also be the latency of the launch that follows. Shape
            ``(w,)``.
    """

    rows: Rows
    stream: Int32s
    start_ns: Int64s
    end_ns: Int64s
    launch: Int32s
    launched_ns: Int64s
    may_be_lag: Mask

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def previous(self) -> Int32s:
        """Position of the work before each on its stream, or :data:`NO_ROW`. Shape ``(w,)``."""
        before = np.arange(-1, len(self.rows) - 1, dtype=np.int32)
        before[1:][self.stream[1:] != self.stream[:-1]] = NO_ROW
        return before

    def streams(self) -> list[slice]:
        """The positions of each stream's work."""
        bounds = np.searchsorted(self.stream, np.arange(int(self.stream.max(initial=-1)) + 2))
        return [slice(a, b) for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]

    def latest_ended(
        self, before_ns: Int64s, launched_by_ns: Int64s
    ) -> Iterator[tuple[slice, Int32s, Mask]]:
        """On each stream the work that ended last by some moments, of what was launched by then.

        Args:
            before_ns: Shape ``(k,)``.
            launched_by_ns: Shape ``(k,)``.

        Yields:
            A stream's positions; of its work the number of the one that ended last, or
            :data:`NO_ROW`; whether nothing launched by then ended later. Shape ``(k,)`` each.
        """
        for stream in self.streams():
            ends = np.maximum.accumulate(self.end_ns[stream])
            launched = np.maximum.accumulate(self.launched_ns[stream])
            ended = np.searchsorted(ends, before_ns, side="right")
            issued = np.searchsorted(launched, launched_by_ns, side="right")
            yield stream, np.minimum(ended, issued).astype(np.int32) - 1, ended >= issued


def device_work(events: EventTable, launches: Launches) -> DeviceWork:
    """The recorded device work by stream."""
    number = stream_numbers(events, launches.work)
    order = np.lexsort((events.ts_ns[launches.work], number))
    rows = launches.work[order]
    launched = launched_ns(events, launches)[order]
    return DeviceWork(
        rows=rows,
        stream=number[order],
        start_ns=events.ts_ns[rows],
        end_ns=events.end_ns[rows],
        launch=launches.launch[order],
        launched_ns=np.where(launched == MISSING, NEVER, launched),
        may_be_lag=np.zeros(len(rows), dtype=np.bool_),
    )
