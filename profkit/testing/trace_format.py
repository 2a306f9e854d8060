"""Writes a trace in the formats of other vendors, older versions of torch, and other exporters.

Source: the categories of ``libkineto/include/ActivityType.h``, the fields of
``libkineto/src/output_json.cpp``, and the Trace Event Format of Chromium.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Literal

import msgspec

from profkit.dataclass import dataclass
from profkit.model.torch_names import MEMORY
from profkit.testing.event_recorder import Event
from profkit.testing.trace_vendors import (
    DEVICE_WORK,
    Vendor,
    build_ignored_events,
    convert_to_vendor,
)

BASE_NS: Final = 1_790_857_026_000_000_000
"""``baseTimeNanoseconds`` of a trace with relative timestamps; any second of 2026 would do."""

Layout = Literal["kineto", "compact", "lines"]
Times = Literal["decimal", "string", "integer"]
InstantPhase = Literal["i", "I", "X"]

_BEFORE_1_11: Final = {
    "cpu_op": "Operator",
    "cuda_runtime": "Runtime",
    "kernel": "Kernel",
    "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset",
}
_ON_DEVICE: Final = DEVICE_WORK | {"memcpy", "memset", "mtia_ccp_events"}
_TO_END_NS: Final = 10**9
_MICROSECOND: Final = 1000


@dataclass(frozen=True)
class Format:
    """How a trace is written. By default it is as the current torch writes it.

    Attributes:
        vendor: The vendor whose names calls, categories and fields have.
        old: Categories, ids and streams as torch wrote them before 1.11.
        layout: Kineto's indented lines, no white space, or one event per line.
        array: Only the events, without an object around them.
        events_first: The other keys come after ``traceEvents``.
        begin_end: Complete events are written as begin (``B``) and end (``E``) events.
        extras: Also flows, asynchronous spans, counters, names and marks (``s t f b n e C M I``),
            and a vendor's events that no figure includes.
        times: Exact decimals, decimals as strings, or whole microseconds.
        absolute: Times since 1970.
        instants: The phase of instants; with ``X`` allocations are complete events that last to
            the end of the trace, as torch's Python exporter writes them.
        text_ids: Processes and threads as strings.
        unit: ``displayTimeUnit``, for viewers. Times are microseconds with either value.
    """

    vendor: Vendor = "cuda"
    old: bool = False
    layout: Layout = "compact"
    array: bool = False
    events_first: bool = False
    begin_end: bool = False
    extras: bool = False
    times: Times = "decimal"
    absolute: bool = False
    instants: InstantPhase = "i"
    text_ids: bool = False
    unit: Literal["ms", "ns"] = "ms"

    def to_bytes(self, events: Iterable[Event], head: Mapping[str, object]) -> bytes:
        """Encode a trace as JSON text.

        Args:
            events: CUDA events.
            head: The top-level keys other than ``traceEvents``.

        Raises:
            ValueError: A time is not a whole microsecond with ``times="integer"``, or events
                overlap without nesting with ``begin_end=True``.
        """
        converted = [self._convert(event) for event in events]
        written = _split_complete(converted) if self.begin_end else converted
        entries = [
            msgspec.json.encode(entry) for event in written for entry in self._build_entries(event)
        ]
        array = _join(entries, self.layout)
        if self.array:
            return array

        # Parsers have to accept the events before and after the other keys.
        keys = {"schemaVersion": 1, "displayTimeUnit": self.unit, **head}
        if not self.absolute:
            keys["baseTimeNanoseconds"] = BASE_NS
        top = msgspec.json.encode(keys)[1:-1]
        body = b'"traceEvents":' + array
        return b"{" + b",".join((body, top) if self.events_first else (top, body)) + b"}"

    def _convert(self, event: Event) -> Event:
        event = convert_to_vendor(event, self.vendor)
        if event.ph == "i":
            is_complete = self.instants == "X" and event.name == MEMORY
            phase = "X" if is_complete else self.instants.replace("X", "i")
            event = replace(event, ph=phase, dur_ns=_TO_END_NS if is_complete else None)
        return _convert_to_old(event) if self.old else event

    def _build_entries(self, event: Event) -> Iterator[dict[str, Any]]:
        yield self._build_entry(event)
        if self.extras and event.ph in ("X", "B"):
            yield from self._build_extras(event)

    def _build_entry(self, event: Event) -> dict[str, Any]:
        # The keys are in Kineto's order.
        entry: dict[str, Any] = {"ph": event.ph}
        if event.cat is not None:
            entry["cat"] = event.cat
        entry["name"] = event.name

        lane = (event.pid, event.tid)
        entry["pid"], entry["tid"] = map(str, lane) if self.text_ids else lane
        entry["ts"] = self._encode_time(event.ts_ns + (BASE_NS if self.absolute else 0))
        if event.dur_ns is not None:
            entry["dur"] = self._encode_time(event.dur_ns)

        # The scope of an instant: its thread.
        if event.ph in ("i", "I"):
            entry["s"] = "t"
        if event.args is not None:
            entry["args"] = event.args
        return entry

    def _build_extras(self, event: Event) -> Iterator[dict[str, Any]]:
        """Build entries that some traces have in addition to an event, and profkit ignores."""
        ident = (event.args or {}).get("correlation")
        if ident is None:
            return

        entry = self._build_entry(event)
        common = {"id": ident, **{key: entry[key] for key in ("pid", "tid", "ts")}}
        flow = "async_cpu_to_gpu" if self.old else "ac2g"
        on_device = (event.cat or "").lower() in _ON_DEVICE
        yield {"ph": "f" if on_device else "s", "cat": flow, "name": flow, "bp": "e", **common}
        yield from ({"ph": ph, "cat": "span", "name": "span", **common} for ph in "tbneIC")
        yield {"ph": "M", "name": "process_sort_index", **common, "args": {"sort_index": 5}}

        if on_device and event.ph == "X":
            yield from map(self._build_entry, build_ignored_events(event, self.vendor))

    def _encode_time(self, ns: int) -> msgspec.Raw:
        if self.times == "integer":
            if ns % _MICROSECOND:
                raise ValueError(f"{ns} ns is not a whole number of microseconds.")
            return msgspec.Raw(b"%d" % (ns // _MICROSECOND))

        # The sign is apart, since the quotient of a negative time is rounded down.
        us, fraction_ns = divmod(abs(ns), _MICROSECOND)
        text = f"{'-' if ns < 0 else ''}{us}.{fraction_ns:03d}"
        return msgspec.Raw((f'"{text}"' if self.times == "string" else text).encode())


def _convert_to_old(event: Event) -> Event:
    cat = event.cat or ""
    args = None
    if event.args is not None:
        args = {("external id" if k == "External id" else k): v for k, v in event.args.items()}
    tid = f"stream {event.tid}" if cat in DEVICE_WORK else event.tid
    return replace(event, cat=_BEFORE_1_11.get(cat, cat), tid=tid, args=args)


def _split_complete(events: Iterable[Event]) -> list[Event]:
    """Split every event with a duration into a begin (``B``) and an end (``E``) event.

    The events of a thread are ordered by time, as the format requires. Begin and end alternately
    get one of the event's arguments.

    Raises:
        ValueError: Two events of one thread overlap without nesting.

    Source: Trace Event Format, "Duration Events".
    """
    written: list[Event] = []
    lanes: dict[tuple[object, object], list[Event]] = {}
    for event in events:
        if event.dur_ns is None or event.name == MEMORY:
            written.append(event)
        else:
            lanes.setdefault((event.pid, event.tid), []).append(event)

    for complete in lanes.values():
        written += _split_lane(sorted(complete, key=lambda e: (e.ts_ns, -_end_ns(e))))
    return written


def _split_lane(events: list[Event]) -> Iterator[Event]:
    """Yield begin and end events of one thread, whose events are ordered by start, longest first.

    A stack of the open events gives the order of the ends.
    """
    begun: list[Event] = []
    for event in events:
        while begun and _end_ns(begun[-1]) <= event.ts_ns:
            yield _begin_or_end(begun.pop(), "E")
        if begun and _end_ns(event) > _end_ns(begun[-1]):
            raise ValueError(f"{event.name!r} begins within {begun[-1].name!r} and ends after it.")
        yield _begin_or_end(event, "B")
        begun.append(event)
    while begun:
        yield _begin_or_end(begun.pop(), "E")


def _end_ns(event: Event) -> int:
    return event.ts_ns + (event.dur_ns or 0)


def _begin_or_end(event: Event, ph: str) -> Event:
    args = list((event.args or {}).items())[0 if ph == "B" else 1 :: 2]
    ts_ns = event.ts_ns if ph == "B" else _end_ns(event)
    return replace(event, ph=ph, ts_ns=ts_ns, dur_ns=None, args=dict(args))


def _join(entries: list[bytes], layout: Layout) -> bytes:
    if layout == "compact":
        return b"[" + b",".join(entries) + b"]"
    if layout == "lines":
        return b"[\n" + b",\n".join(entries) + b"\n]"
    # Kineto's own layout has the braces on lines of their own.
    indented = [b"  {\n    " + entry[1:-1] + b"\n  }" for entry in entries]
    return b"[\n" + b",\n".join(indented) + b"\n]"
