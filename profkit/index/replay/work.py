"""Device work by stream, with the moment of its launch."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from profkit.dataclass import dataclass
from profkit.index.device.launch_moments import find_launched_in_order
from profkit.index.device.streams import sort_by_stream
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

    @cached_property
    def previous(self) -> Int32s:
        """Return the position of the work before each on its stream, or :data:`NO_ROW`.

        Shape ``(w,)``.
        """
        before = np.arange(-1, len(self.rows) - 1, dtype=np.int32)
        before[1:][self.stream[1:] != self.stream[:-1]] = NO_ROW
        return before

    def streams(self) -> list[slice]:
        """Return the positions of each stream's work."""
        bounds = np.searchsorted(self.stream, np.arange(int(self.stream.max(initial=-1)) + 2))
        return [slice(a, b) for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]

    def latest_so_far(self, moments_ns: Int64s) -> Int64s:
        """Return the latest moment of each work and all work before it on its stream.

        Shape ``(w,)``.
        """
        latest_ns = np.empty_like(moments_ns)
        for stream in self.streams():
            np.maximum.accumulate(moments_ns[stream], out=latest_ns[stream])
        return latest_ns

    @cached_property
    def all_ended_ns(self) -> Int64s:
        """Return when each work and all before it on its stream had ended. Shape ``(w,)``."""
        return self.latest_so_far(self.end_ns)

    @cached_property
    def all_launched_ns(self) -> Int64s:
        """Return when each work and all before it on its stream had been launched.

        Shape ``(w,)``.
        """
        return self.latest_so_far(self.launched_ns)

    @cached_property
    def next_launched_ns(self) -> Int64s:
        """Return when the next work on the stream of each had been launched. Shape ``(w,)``."""
        is_last = np.append(self.stream[1:] != self.stream[:-1], True)
        return np.where(is_last, -NEVER, np.append(self.all_launched_ns[1:], NEVER))

    def latest_ended(
        self, before_ns: Int64s, launched_by_ns: Int64s
    ) -> Iterator[tuple[slice, Int32s, Mask]]:
        """Find on each stream the work that ended last by some moments, if launched by then.

        Args:
            before_ns: Shape ``(k,)``.
            launched_by_ns: Shape ``(k,)``.

        Yields:
            A stream's positions; of its work the number of the one that ended last, or
            :data:`NO_ROW`; whether nothing launched by then ended later. Shape ``(k,)`` each.
        """
        for stream in self.streams():
            ended = np.searchsorted(self.all_ended_ns[stream], before_ns, side="right")
            issued = np.searchsorted(self.all_launched_ns[stream], launched_by_ns, side="right")
            yield stream, np.minimum(ended, issued).astype(np.int32) - 1, ended >= issued


def build_device_work(events: EventTable, launches: Launches) -> DeviceWork:
    """Return the recorded device work by stream."""
    stream, order = sort_by_stream(events, launches.work)
    rows, launch, stream = launches.work[order], launches.launch[order], stream[order]
    launched = find_launched_in_order(events, rows, launch, stream)

    return DeviceWork(
        rows=rows,
        stream=stream,
        start_ns=events.ts_ns[rows],
        end_ns=events.end_ns[rows],
        launch=launch,
        launched_ns=np.where(launched == MISSING, NEVER, launched),
        may_be_lag=np.zeros(len(rows), dtype=np.bool_),
    )
