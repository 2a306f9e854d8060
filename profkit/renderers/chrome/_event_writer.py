"""Events in the trace-event format: slices, markers, arrows, counters, names of rows.

Source: "Trace Event Format" of the Chromium project. Slices of one row must nest or be
disjoint, or viewers drop them; an arrow is bound by category, name and id, at its end to the slice
around it.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from profkit.model.events import Lane
from profkit.names import visible
from profkit.readers.kineto import keys

_FIRST_PID: Final = 1_886_547_814
"""A process id that no program has: far above the ids of Linux, and within 32 bits."""
_FIRST_ARROW: Final = 1 << 48
"""Above the arrow ids of profilers, and exact in JavaScript."""
_GRIDS_NS: Final = ((1 << 51, 1), (1 << 53, 125))
"""Viewers store microseconds as doubles and round times that these do not hold, so that adjacent
slices overlap and are dropped. Up to the first limit whole nanoseconds survive; up to the second,
of 104 days, eighths of a microsecond, to which the added events are moved; beyond it, only whole
microseconds do."""
_BEYOND_NS: Final = 1000

Value = TypeVar("Value")


class EventWriter:
    """Encodes the events of one more process.

    Args:
        lanes: The rows of the recording; the process has an id that none of them has.
        origin_ns: The recording's start on the clock of the file.
        end_ns: The recording's end, from its start.
        pid: The id of the process, unless the recording has it.
    """

    def __init__(
        self, lanes: Iterable[Lane], origin_ns: int, end_ns: int, pid: int = _FIRST_PID
    ) -> None:
        taken = {lane.pid for lane in lanes}
        self.pid = pid
        while str(self.pid) in taken:
            self.pid += 1
        self._origin_ns = origin_ns
        latest_ns = abs(origin_ns) + end_ns
        self._grid_ns = next((grid for to, grid in _GRIDS_NS if latest_ns < to), _BEYOND_NS)
        self._n_rows = 0
        self._n_arrows = 0

    def name_process(self, name: str) -> list[bytes]:
        """Return the events that name the process and sort it above all others."""
        return [
            self._event("M", keys.PROCESS_NAME, tid=0, args={"name": name}),
            self._event("M", keys.PROCESS_ORDER, tid=0, args={"sort_index": -1}),
        ]

    def add_row(self, name: str) -> tuple[int, list[bytes]]:
        """Add a row below the earlier ones: return its thread id and the events that name it."""
        self._n_rows += 1

        # A thread id that no other process has: some viewers identify threads by it alone.
        tid = self.pid + self._n_rows
        index = {"sort_index": self._n_rows}
        return tid, [
            self._event("M", keys.THREAD_NAME, tid=tid, args={"name": visible(name)}),
            self._event("M", keys.THREAD_ORDER, tid=tid, args=index),
        ]

    def slice(
        self, row: int, name: str, start_ns: int, end_ns: int, args: Mapping[str, object]
    ) -> bytes:
        """Return a slice; times are from the recording's start."""
        start, end = self._on_file_ns(start_ns), self._on_file_ns(end_ns)
        length = msgspec.Raw(_microseconds(end - start))
        return self._event("X", visible(name), tid=row, at=start, dur=length, args=args)

    def marker(self, lane: Lane, name: str, at_ns: int, args: Mapping[str, object]) -> bytes:
        """Return an instant event at an event of the recording."""
        place = {"pid": _number(lane.pid), "tid": _number(lane.tid)}
        at = self._origin_ns + at_ns
        return self._event("i", visible(name), at=at, s="t", args=args, **place)

    def arrow(self, row: int, from_ns: int, lane: Lane, to_ns: int) -> list[bytes]:
        """Return an arrow from a slice on ``row`` at ``from_ns`` to an event on ``lane``.

        Arrows go forward in time: to an event that begins before the slice, from the event.
        """
        self._n_arrows += 1
        number = _FIRST_ARROW + self._n_arrows
        place = {"pid": _number(lane.pid), "tid": _number(lane.tid)}

        # It ends at the exact start of the event: before that there is no slice to bind to.
        begin, end = self._on_file_ns(from_ns), self._origin_ns + to_ns
        ends: list[tuple[int, dict[str, object]]] = [(begin, {"tid": row}), (end, {**place})]
        (first, first_place), (last, last_place) = ends if begin <= end else ends[::-1]

        return [
            self._event("s", "refers to", at=first, id=number, **first_place),
            self._event("f", "refers to", at=last, id=number, bp="e", **last_place),
        ]

    def counter(self, name: str, at_ns: int, values: Mapping[str, float]) -> bytes:
        """Return the values of a counter from a moment on."""
        return self._event("C", visible(name), tid=0, at=self._on_file_ns(at_ns), args=values)

    def _on_file_ns(self, at_ns: int) -> int:
        on_file = self._origin_ns + at_ns
        # Upwards: viewers count time from the first event, which stays the recording's.
        return -(-on_file // self._grid_ns) * self._grid_ns

    def _event(self, ph: str, name: str, *, at: int | None = None, **fields: object) -> bytes:
        event: dict[str, object] = {"ph": ph, "cat": keys.PROFKIT, "name": name, "pid": self.pid}
        event |= {"ts": msgspec.Raw(_microseconds(at))} if at is not None else {}
        return msgspec.json.encode(event | fields)


def _number(written: str) -> int | str:
    """Return a process or thread id: a number, except in very old traces."""
    return int(written) if written.removeprefix("-").isdecimal() else written


def _microseconds(ns: int) -> bytes:
    """Return nanoseconds as microseconds with three decimals."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}".encode()


def pack_rows(intervals: Iterable[tuple[int, int, Value]]) -> list[list[tuple[int, int, Value]]]:
    """Pack intervals with values into rows within which none overlap, first fit first."""
    rows: list[list[tuple[int, int, Value]]] = []
    last_ends: list[int] = []
    for interval in intervals:
        start, end, _ = interval
        for i, row in enumerate(rows):
            # Most intervals come in order, and need no look at the whole row.
            if last_ends[i] <= start or all(end <= a or b <= start for a, b, _ in row):
                row.append(interval)
                last_ends[i] = max(last_ends[i], end)
                break
        else:
            rows.append([interval])
            last_ends.append(end)
    return rows
