"""One program in the many spellings that traces have had: makers, ages, layouts.

Source: the categories of ``libkineto/include/ActivityType.h``, the fields of
``libkineto/src/output_json.cpp``, and the Trace Event Format of Chromium.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import msgspec

from profkit.model.torch_names import MEMORY
from profkit.testing.begin_end_events import as_edges
from profkit.testing.event_recorder import Event
from profkit.testing.trace_file import BASE_NS
from profkit.testing.trace_vendors import DEVICE_WORK, Vendor, beside, of_vendor

Layout = Literal["kineto", "compact", "lines"]
Times = Literal["decimal", "string", "integer"]
Moment = Literal["i", "I", "X"]

_BEFORE_1_11: Final = {
    "cpu_op": "Operator",
    "cuda_runtime": "Runtime",
    "kernel": "Kernel",
    "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset",
}
_ON_DEVICE: Final = DEVICE_WORK | {"memcpy", "memset", "mtia_ccp_events"}
_LONG_NS: Final = 10**9
_MICROSECOND: Final = 1000


@dataclass(frozen=True)
class Format:
    """How a trace is written. The defaults are what torch writes today.

    Attributes:
        vendor: Whose names calls, categories and fields have.
        old: Categories, ids and streams as torch wrote them before 1.11.
        layout: Kineto's lines for a reader's eye, no spaces at all, or one event a line.
        array: The events alone, without an object around them.
        events_first: The other keys stand behind ``traceEvents``.
        edges: Every event that lasts as a begin (``B``) and an end (``E``).
        extras: Also flows, asynchronous spans, counters, names and marks (``s t f b n e C M I``),
            and what a vendor's profiler writes that no figure counts.
        times: Exact decimals, the same as strings, or whole microseconds.
        absolute: Times since 1970.
        moments: Instants by either letter; or allocations as complete events, which torch's Python
            exporter lets last to the end of the trace.
        text_ids: Processes and threads as strings.
        unit: ``displayTimeUnit``: what a viewer shows. Times are microseconds all the same.
    """

    vendor: Vendor = "cuda"
    old: bool = False
    layout: Layout = "compact"
    array: bool = False
    events_first: bool = False
    edges: bool = False
    extras: bool = False
    times: Times = "decimal"
    absolute: bool = False
    moments: Moment = "i"
    text_ids: bool = False
    unit: Literal["ms", "ns"] = "ms"

    def to_bytes(self, events: Iterable[Event], head: Mapping[str, object]) -> bytes:
        """Write a trace.

        Args:
            events: Its events, as CUDA's are.
            head: The keys beside ``traceEvents``.

        Raises:
            ValueError: Times shall be whole microseconds, and one is not; or events that overlap
                shall be begins and ends.
        """
        spelled = [self._spelled(event) for event in events]
        written = as_edges(spelled) if self.edges else spelled
        entries = [
            msgspec.json.encode(entry) for event in written for entry in self._entries(event)
        ]
        listed = _listed(entries, self.layout)
        if self.array:
            return listed
        keys = {"schemaVersion": 1, "displayTimeUnit": self.unit, **head}
        if not self.absolute:
            keys["baseTimeNanoseconds"] = BASE_NS
        top = msgspec.json.encode(keys)[1:-1]
        body = b'"traceEvents":' + listed
        return b"{" + b",".join((body, top) if self.events_first else (top, body)) + b"}"

    def _spelled(self, event: Event) -> Event:
        event = of_vendor(event, self.vendor)
        if event.ph == "i":
            lasts = self.moments == "X" and event.name == MEMORY
            letter = "X" if lasts else self.moments.replace("X", "i")
            event = replace(event, ph=letter, dur_ns=_LONG_NS if lasts else None)
        return _before_1_11(event) if self.old else event

    def _entries(self, event: Event) -> Iterator[dict[str, Any]]:
        yield self._entry(event)
        if self.extras and event.ph in ("X", "B"):
            yield from self._extras(event)

    def _entry(self, event: Event) -> dict[str, Any]:
        entry: dict[str, Any] = {"ph": event.ph, "cat": event.cat, "name": event.name}
        place = (event.pid, event.tid)
        entry["pid"], entry["tid"] = map(str, place) if self.text_ids else place
        entry["ts"] = self._time(event.ts_ns + (BASE_NS if self.absolute else 0))
        if event.dur_ns is not None:
            entry["dur"] = self._time(event.dur_ns)
        if event.ph in ("i", "I"):
            entry["s"] = "t"
        if event.args is not None:
            entry["args"] = event.args
        return entry

    def _extras(self, event: Event) -> Iterator[dict[str, Any]]:
        """What stands beside an event in one file or another and holds no figure of ours."""
        ident = (event.args or {}).get("correlation")
        if ident is None:
            return
        entry = self._entry(event)
        place = {"id": ident, **{key: entry[key] for key in ("pid", "tid", "ts")}}
        flow = "async_cpu_to_gpu" if self.old else "ac2g"
        on_device = (event.cat or "").lower() in _ON_DEVICE
        yield {"ph": "f" if on_device else "s", "cat": flow, "name": flow, "bp": "e", **place}
        yield from ({"ph": ph, "cat": "span", "name": "span", **place} for ph in "tbneIC")
        yield {"ph": "M", "name": "process_sort_index", **place, "args": {"sort_index": 5}}
        if on_device and event.ph == "X":
            yield from map(self._entry, beside(event, self.vendor))

    def _time(self, ns: int) -> msgspec.Raw:
        whole, rest = divmod(ns, _MICROSECOND)
        if self.times == "integer":
            if rest:
                raise ValueError(f"{ns} ns is no whole microsecond.")
            return msgspec.Raw(b"%d" % whole)
        if ns < 0:
            whole, rest = divmod(-ns, _MICROSECOND)
        text = f"{'-' if ns < 0 else ''}{whole}.{rest:03d}"
        return msgspec.Raw((f'"{text}"' if self.times == "string" else text).encode())


def _before_1_11(event: Event) -> Event:
    """An event as torch wrote it before 1.11."""
    cat = event.cat or ""
    args = None
    if event.args is not None:
        args = {("external id" if k == "External id" else k): v for k, v in event.args.items()}
    tid = f"stream {event.tid}" if cat in DEVICE_WORK else event.tid
    return replace(event, cat=_BEFORE_1_11.get(cat, cat), tid=tid, args=args)


def _listed(entries: list[bytes], layout: Layout) -> bytes:
    if layout == "compact":
        return b"[" + b",".join(entries) + b"]"
    if layout == "lines":
        return b"[\n" + b",\n".join(entries) + b"\n]"
    spread = [b"  {\n    " + entry[1:-1] + b"\n  }" for entry in entries]
    return b"[\n" + b",\n".join(spread) + b"\n]"
