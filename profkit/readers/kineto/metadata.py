"""Reads the keys beside the events: devices, ranks, versions, what was recorded."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from profkit.model.process_group import ranks_of
from profkit.model.trace import DeviceInfo, RecordedWith
from profkit.patterns import regex
from profkit.readers.kineto.schema import DeviceProperties, DistributedInfo, GroupConfig, Int64
from profkit.readers.kineto.split import BAD_ESCAPE_BYTES, UNREADABLE, TraceText

_VERSIONS: Final = (
    "cupti_version",
    "cuda_runtime_version",
    "cuda_driver_version",
    "roctracer_version",
    "hip_runtime_version",
    "hip_driver_version",
    "nccl_version",
)
_LEVELS: Final = ("INFO", "WARNING", "ERROR")

_EVENT: Final = regex(rb'"ph"\s*:')

Header = Mapping[str, msgspec.Raw]


def header_of(text: TraceText) -> Header | None:
    """The top-level keys of a trace without its events; None if they cannot be decoded."""
    if text.bare:
        return {}
    joined = text.head + b"]" + bytes(text.tail)
    closed = joined if text.complete else joined + b"}"
    candidates = (closed, BAD_ESCAPE_BYTES.sub(rb"\\\\", closed), text.head + b"]}")
    return next((found for c in candidates if (found := _decoded(c)) is not None), None)


def n_unread_bytes(text: TraceText) -> int:
    """The size of what follows the events and is not read: another trace, or a list of events."""
    after = bytes(text.tail).strip()
    if not text.complete or not after:
        return 0
    if text.bare:
        return len(after)
    joined = text.head + b"]" + after
    candidates = (joined, BAD_ESCAPE_BYTES.sub(rb"\\\\", joined))
    header = next((found for c in candidates if (found := _decoded(c)) is not None), None)
    if header is not None:
        again = bytes(header.get("traceEvents", b"[]"))
        return len(again) if again.strip(b"[] \t\r\n") else 0
    return len(after) if _EVENT.search(after) else 0


def _decoded(text: bytes) -> Header | None:
    try:
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except UNREADABLE:
        return None


def _value(header: Header, key: str, kind: Any, default: Any) -> Any:  # noqa: ANN401  (of that kind)
    """A key's value, or the default if it is missing or of another type."""
    raw = header.get(key)
    if raw is None:
        return default
    try:
        return msgspec.json.decode(raw, type=kind, strict=False)
    except UNREADABLE:
        return default


def devices(header: Header) -> dict[int, DeviceInfo]:
    """``deviceProperties``, by ordinal."""
    found = map(_device, _value(header, "deviceProperties", list[Any], []))
    return {device.index: device for device in found if device is not None}


def _device(properties: Any) -> DeviceInfo | None:  # noqa: ANN401  (any JSON value)
    try:
        found = msgspec.convert(properties, DeviceProperties)
    except msgspec.ValidationError:
        return None
    known = found.major is not None and found.minor is not None
    return DeviceInfo(
        index=found.id,
        name=found.name,
        total_bytes=found.total_bytes,
        n_sms=found.n_sms,
        max_threads_per_sm=found.max_threads_per_sm,
        compute_capability=(found.major or 0, found.minor or 0) if known else None,
    )


def recorded_with(header: Header, *, has_stacks: bool, has_memory: bool) -> RecordedWith:
    """The profiler's options.

    Kineto writes a flag only if it is set, so a flag that is missing from a file with others was
    off. Stacks or memory found in the events were recorded whatever the flags say.
    """
    names = {"stacks": "with_stack", "shapes": "record_shapes", "memory": "profile_memory",
             "modules": "with_modules", "flops": "with_flops"}  # fmt: skip
    values = {name: _value(header, key, int, None) for name, key in names.items()}
    flags = {name: None if value is None else bool(value) for name, value in values.items()}
    if any(flags.values()):
        flags = {key: bool(value) for key, value in flags.items()}
    if has_stacks:
        flags["stacks"] = True
    if has_memory:
        flags["memory"] = True
    return RecordedWith(**flags)


def distributed(header: Header) -> tuple[int | None, int | None]:
    """Rank and world size, each None if not recorded."""
    found = _distributed(header)
    return found.rank, found.world_size


def groups(header: Header) -> dict[str, tuple[int, ...]]:
    """The ranks of each process group by name, as far as they are recorded."""
    try:
        found = msgspec.convert(_distributed(header).groups or [], list[GroupConfig])
    except msgspec.ValidationError:
        return {}
    ranks = ((group.name, ranks_of(group.ranks)) for group in found)
    return {name: own for name, own in ranks if name and own}


def _distributed(header: Header) -> DistributedInfo:
    found: DistributedInfo = _value(header, "distributedInfo", DistributedInfo, DistributedInfo())
    return found


def versions(header: Header) -> dict[str, str]:
    """Versions of the driver and the vendor's libraries."""
    found = {key: _value(header, key, Any, None) for key in _VERSIONS}
    return {key: str(value) for key, value in found.items() if value is not None}


def messages(header: Header) -> dict[str, tuple[str, ...]]:
    """Kineto's own log messages in the trace, by level."""
    found = {level: _value(header, level, list[Any], []) for level in _LEVELS}
    return {level: tuple(str(m) for m in listed) for level, listed in found.items() if listed}


def host(header: Header) -> str | None:
    """The machine's name, or None if not recorded."""
    name: str | None = _value(header, "host_name", str, None)
    return name


def base_time_ns(header: Header) -> int:
    """The base that times in the file are relative to, in ns since 1970; 0 if they are absolute."""
    base: int = _value(header, "baseTimeNanoseconds", Int64, 0)
    return base
