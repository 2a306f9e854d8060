"""Events as the JSON of a Kineto trace: a dictionary, bytes or a file."""

import gzip
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from profkit.testing.recording import Event

BASE_NS = 1_790_857_026_000_000_000
"""``baseTimeNanoseconds`` of a trace with relative timestamps; any second of 2026 would do."""


def _microseconds_text(ns: int) -> msgspec.Raw:
    """Nanoseconds as microseconds with three decimals, exact at any size."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return msgspec.Raw(f"{sign}{ns // 1000}.{ns % 1000:03d}".encode())


def _microseconds_number(ns: int) -> float:
    return ns / 1000


def _entry(event: Event, offset_ns: int, number: Callable[[int], object]) -> dict[str, Any]:
    entry: dict[str, Any] = {"ph": event.ph}
    if event.cat is not None:
        entry["cat"] = event.cat
    entry |= {"name": event.name, "pid": event.pid, "tid": event.tid}
    entry["ts"] = number(event.ts_ns + offset_ns)
    if event.dur_ns is not None:
        entry["dur"] = number(event.dur_ns)
    if event.ph == "i":
        entry["s"] = "t"
    if event.args is not None:
        entry["args"] = event.args
    return entry


def _document(
    events: Iterable[Event],
    head: Mapping[str, object],
    *,
    absolute: bool,
    number: Callable[[int], object],
) -> dict[str, Any]:
    offset_ns = BASE_NS if absolute else 0
    document: dict[str, Any] = {"schemaVersion": 1, **head}
    if not absolute:
        document["baseTimeNanoseconds"] = BASE_NS
    document["traceEvents"] = [_entry(event, offset_ns, number) for event in events]
    return document


def to_dict(
    events: Iterable[Event], head: Mapping[str, object], *, absolute: bool
) -> dict[str, Any]:
    """The trace as ``json.load`` would give it, with times as floats of microseconds.

    Args:
        events: The events.
        head: The keys beside ``traceEvents``.
        absolute: Timestamps since 1970 instead of since ``baseTimeNanoseconds``, as traces before
            torch 2.4 have them. As floats those lose their nanoseconds; the bytes keep them.
    """
    document = _document(events, head, absolute=absolute, number=_microseconds_number)
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))
    return plain


def to_bytes(events: Iterable[Event], head: Mapping[str, object], *, absolute: bool) -> bytes:
    """The trace as JSON text, with times as exact decimals. Arguments as in :func:`to_dict`."""
    document = _document(events, head, absolute=absolute, number=_microseconds_text)
    return msgspec.json.encode(document)


def write(path: Path, text: bytes) -> None:
    """Write a trace, gzipped when the name ends in ``.gz``."""
    packed = gzip.compress(text, compresslevel=1, mtime=0) if path.suffix == ".gz" else text
    path.write_bytes(packed)
