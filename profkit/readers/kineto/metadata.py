"""Reads a trace's top-level keys other than the events: devices, ranks, versions, options."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from profkit.model.process_group import ranks_of
from profkit.model.trace import DeviceInfo, RecordedWith
from profkit.patterns import regex
from profkit.readers.kineto import keys
from profkit.readers.kineto.schema import DeviceProperties, DistributedInfo, GroupConfig, Int64
from profkit.readers.kineto.split import UNREADABLE, TraceText, with_repair

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
    """Return the top-level keys of a trace without its events; None if they cannot be decoded."""
    if text.bare:
        return {}
    joined = text.head + b"]" + bytes(text.tail)
    closed = joined if text.complete else joined + b"}"
    return _decode(*with_repair(closed), text.head + b"]}")


def n_unread_bytes(text: TraceText) -> int:
    """Return the size of the unread text after the events: another trace, or more events."""
    after = bytes(text.tail).strip()
    if not text.complete or not after:
        return 0
    if text.bare:
        return len(after)

    # A repeated key has its last value, which is a second list of events.
    header = _decode(*with_repair(text.head + b"]" + after))
    if header is not None:
        second_list = bytes(header.get(keys.EVENTS, b"[]"))
        return len(second_list) if second_list.strip(b"[] \t\r\n") else 0
    return len(after) if _EVENT.search(after) else 0


def _decode(*texts: bytes) -> Header | None:
    """Decode the first text that can be decoded; None if none can."""
    for text in texts:
        try:
            return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        except UNREADABLE:
            pass
    return None


def _value(header: Header, key: str, kind: Any, default: Any) -> Any:  # noqa: ANN401  (of that kind)
    """Return a key's value, or the default if it is missing or of another type."""
    raw = header.get(key)
    if raw is None:
        return default
    try:
        return msgspec.json.decode(raw, type=kind, strict=False)
    except UNREADABLE:
        return default


def devices(header: Header) -> dict[int, DeviceInfo]:
    """Return the devices in ``deviceProperties``, by ordinal."""
    entries = map(_device, _value(header, keys.DEVICES, list[Any], []))
    return {device.index: device for device in entries if device is not None}


def _device(entry: Any) -> DeviceInfo | None:  # noqa: ANN401  (any JSON value)
    try:
        properties = msgspec.convert(entry, DeviceProperties)
    except msgspec.ValidationError:
        return None
    major, minor = properties.major, properties.minor
    return DeviceInfo(
        index=properties.id,
        name=properties.name,
        total_bytes=properties.total_bytes,
        n_sms=properties.n_sms,
        max_threads_per_sm=properties.max_threads_per_sm,
        compute_capability=None if major is None or minor is None else (major, minor),
    )


def recorded_with(header: Header, *, has_stacks: bool, has_memory: bool) -> RecordedWith:
    """Return the profiler's options.

    Kineto writes a flag only if it is set, so a flag that is missing from a file with others was
    off. Stacks or memory found in the events were recorded whatever the flags say.
    """
    values = {name: _value(header, key, int, None) for name, key in keys.FLAGS.items()}
    flags = {name: None if value is None else bool(value) for name, value in values.items()}

    # A file without any flag may be of a version that writes none.
    if any(flags.values()):
        flags = {key: bool(value) for key, value in flags.items()}

    if has_stacks:
        flags["stacks"] = True
    if has_memory:
        flags["memory"] = True
    return RecordedWith(**flags)


def distributed(header: Header) -> tuple[int | None, int | None]:
    """Return rank and world size, each None if not recorded."""
    info = _distributed(header)
    return info.rank, info.world_size


def groups(header: Header) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each process group by name, as far as they are recorded."""
    try:
        configs = msgspec.convert(_distributed(header).groups or [], list[GroupConfig])
    except msgspec.ValidationError:
        return {}
    ranks_by_name = ((config.name, ranks_of(config.ranks)) for config in configs)
    return {name: ranks for name, ranks in ranks_by_name if name and ranks}


def _distributed(header: Header) -> DistributedInfo:
    info: DistributedInfo = _value(header, keys.DISTRIBUTED, DistributedInfo, DistributedInfo())
    return info


def versions(header: Header) -> dict[str, str]:
    """Return the versions of the driver and the vendor's libraries."""
    values = {key: _value(header, key, Any, None) for key in _VERSIONS}
    return {key: str(value) for key, value in values.items() if value is not None}


def messages(header: Header) -> dict[str, tuple[str, ...]]:
    """Return Kineto's own log messages in the trace, by level."""
    values = {level: _value(header, level, list[Any], []) for level in _LEVELS}
    return {level: tuple(map(str, texts)) for level, texts in values.items() if texts}


def host(header: Header) -> str | None:
    """Return the machine's name, or None if not recorded."""
    name: str | None = _value(header, "host_name", str, None)
    return name


def base_time_ns(header: Header) -> int:
    """Return the base of the times in the file, in ns since 1970; 0 if times are absolute."""
    base: int = _value(header, keys.BASE_TIME, Int64, 0)
    return base
