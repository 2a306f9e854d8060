"""Writes events as a Kineto trace: a dictionary, JSON text or a file."""

import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from profkit.testing.event_recorder import Event

BASE_NS = 1_790_857_026_000_000_000
"""``baseTimeNanoseconds`` of a trace with relative timestamps; any second of 2026 would do."""


def _microseconds_text(ns: int) -> msgspec.Raw:
    """Microseconds with three decimals, exact at any size."""
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
    """The trace as ``json.load`` returns it, with times as floats of microseconds.

    Args:
        head: The keys beside ``traceEvents``.
        absolute: Timestamps since 1970 instead of since ``baseTimeNanoseconds``, as before torch
            2.4. Floats lose their nanoseconds; :func:`to_bytes` is exact.
    """
    document = _document(events, head, absolute=absolute, number=_microseconds_number)
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))
    return plain


def to_bytes(events: Iterable[Event], head: Mapping[str, object], *, absolute: bool) -> bytes:
    """The trace as JSON text, with times as exact decimals. Arguments as in :func:`to_dict`."""
    document = _document(events, head, absolute=absolute, number=_microseconds_text)
    return msgspec.json.encode(document)


def write(path: Path, text: bytes, n_members: int = 1) -> None:
    """Write a trace, compressed according to its name.

    Args:
        path: The suffixes ``.gz``, ``.zst``, ``.zip`` and ``.tar`` are applied in their order
            (``.tar.gz``). The member of an archive is ``trace.json``, ``trace.json.gz`` and so on.
        text: The trace.
        n_members: Number of members of a gzip stream: some programs compress piece by piece.
    """
    name = "trace.json"
    for suffix in path.suffixes:
        if suffix == ".gz":
            text = _gzip(text, n_members)
        elif suffix in _COMPRESSORS:
            text = _COMPRESSORS[suffix](text, name)
        else:
            continue
        name += suffix
    path.write_bytes(text)


def _gzip(text: bytes, n_members: int) -> bytes:
    length = -(-len(text) // n_members) or 1
    pieces = [text[at : at + length] for at in range(0, len(text), length)] or [b""]
    return b"".join(gzip.compress(piece, compresslevel=1, mtime=0) for piece in pieces)


def _zstd(text: bytes, _: str) -> bytes:
    import zstandard  # noqa: PLC0415  (an extra, needed for such files only)

    return bytes(zstandard.compress(text))


def _zip(text: bytes, name: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _tar(text: bytes, name: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text))
    return packed.getvalue()


_COMPRESSORS: Final[dict[str, Callable[[bytes, str], bytes]]] = {
    ".zst": _zstd,
    ".zip": _zip,
    ".tar": _tar,
}
