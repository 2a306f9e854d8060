"""One program in the many spellings that traces have had: makers, ages, layouts.

Source: the categories of ``libkineto/include/ActivityType.h``, the fields of
``libkineto/src/output_json.cpp``, and the Trace Event Format of Chromium.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import msgspec

from profkit.testing.recording import Event
from profkit.testing.trace_file import BASE_NS

Vendor = Literal["cuda", "rocm", "rocm-7.1", "xpu", "privateuse1"]
Layout = Literal["kineto", "compact", "lines"]
Times = Literal["decimal", "string", "integer"]

_BEFORE_1_11: Final = {
    "cpu_op": "Operator",
    "cuda_runtime": "Runtime",
    "kernel": "Kernel",
    "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset",
}
_RUNTIME: Final = {"xpu": "xpu_runtime", "privateuse1": "privateuse1_runtime"}
_PREFIX: Final = {"rocm": "hip", "rocm-7.1": "hip", "xpu": "ur", "privateuse1": "device"}
_AS_KERNELS: Final = {
    "gpu_memcpy": "__amd_rocclr_copyBuffer",
    "gpu_memset": "__amd_rocclr_fillBufferAligned",
}
_DEVICE: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
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
        edges: Annotations as a begin (``B``) and an end (``E``).
        extras: Also flows, asynchronous spans, counters, names and marks (``s t f b n e C M I``).
        times: Exact decimals, the same as strings, or whole microseconds.
        absolute: Times since 1970.
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

    def to_bytes(self, events: Iterable[Event], head: Mapping[str, object]) -> bytes:
        """Write a trace.

        Args:
            events: Its events, as CUDA's are.
            head: The keys beside ``traceEvents``.

        Raises:
            ValueError: Times shall be whole microseconds, and one is not.
        """
        entries = [msgspec.json.encode(entry) for event in events for entry in self._entries(event)]
        listed = _listed(entries, self.layout)
        if self.array:
            return listed
        keys = {"schemaVersion": 1, "displayTimeUnit": "ms", **head}
        if not self.absolute:
            keys["baseTimeNanoseconds"] = BASE_NS
        top = msgspec.json.encode(keys)[1:-1]
        body = b'"traceEvents":' + listed
        return b"{" + b",".join((body, top) if self.events_first else (top, body)) + b"}"

    def _entries(self, event: Event) -> Iterator[dict[str, Any]]:
        event = _of_vendor(event, self.vendor)
        if self.old:
            event = _before_1_11(event)
        if self.edges and event.cat == "user_annotation":
            end = replace(event, ph="E", ts_ns=event.ts_ns + (event.dur_ns or 0), dur_ns=None)
            yield self._entry(replace(event, ph="B", dur_ns=None))
            yield self._entry(end)
        else:
            yield self._entry(event)
        if self.extras:
            yield from self._extras(event)

    def _entry(self, event: Event) -> dict[str, Any]:
        entry: dict[str, Any] = {"ph": event.ph, "cat": event.cat, "name": event.name}
        entry |= {"pid": event.pid, "tid": event.tid}
        entry["ts"] = self._time(event.ts_ns + (BASE_NS if self.absolute else 0))
        if event.dur_ns is not None:
            entry["dur"] = self._time(event.dur_ns)
        if event.ph == "i":
            entry["s"] = "t"
        if event.args is not None:
            entry["args"] = event.args
        return entry

    def _extras(self, event: Event) -> Iterator[dict[str, Any]]:
        """What stands beside an event in one file or another and holds no figure of ours."""
        ident = (event.args or {}).get("correlation")
        if ident is None:
            return
        place = {"pid": event.pid, "tid": event.tid, "id": ident, "ts": self._time(event.ts_ns)}
        flow = "async_cpu_to_gpu" if self.old else "ac2g"
        on_device = (event.cat or "").lower().removeprefix("gpu_") in ("kernel", "memcpy", "memset")
        yield {"ph": "f" if on_device else "s", "cat": flow, "name": flow, "bp": "e", **place}
        yield from ({"ph": ph, "cat": "span", "name": "span", **place} for ph in "tbneIC")
        yield {"ph": "M", "name": "process_sort_index", **place, "args": {"sort_index": 5}}

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


def _of_vendor(event: Event, vendor: Vendor) -> Event:
    """A CUDA event as another vendor's part of the profiler writes it."""
    if vendor == "cuda":
        return event
    args = dict(event.args or {})
    if event.cat == "cuda_runtime":
        name = _PREFIX[vendor] + event.name.removeprefix("cuda")
        return replace(event, cat=_RUNTIME.get(vendor, event.cat), name=name)
    if event.cat not in _DEVICE:
        return event
    name, cat = event.name, event.cat
    if vendor == "xpu":
        args["sycl queue"] = args.pop("stream")
    elif vendor == "rocm-7.1" and cat in _AS_KERNELS:
        name, cat = _AS_KERNELS[cat], "kernel"
    if vendor.startswith("rocm"):
        args = {key: str(value) if key == "bytes" else value for key, value in args.items()}
        name = name.replace("Pageable", "Host").replace("Pinned", "Host")
    return replace(event, name=name, cat=cat, args=args)


def _before_1_11(event: Event) -> Event:
    """An event as torch wrote it before 1.11."""
    cat = event.cat or ""
    args = None
    if event.args is not None:
        args = {("external id" if k == "External id" else k): v for k, v in event.args.items()}
    tid = f"stream {event.tid}" if cat in _DEVICE else event.tid
    return replace(event, cat=_BEFORE_1_11.get(cat, cat), tid=tid, args=args)


def _listed(entries: list[bytes], layout: Layout) -> bytes:
    if layout == "compact":
        return b"[" + b",".join(entries) + b"]"
    if layout == "lines":
        return b"[\n" + b",\n".join(entries) + b"\n]"
    spread = [b"  {\n    " + entry[1:-1] + b"\n  }" for entry in entries]
    return b"[\n" + b",\n".join(spread) + b"\n]"
