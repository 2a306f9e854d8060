"""What stands around the events: devices, ranks, versions, what was recorded."""

import contextlib
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from profkit.model.capture_info import CaptureInfo
from profkit.model.trace import DeviceInfo, RecordedWith
from profkit.readers.kineto.schema import DeviceProperties, DistributedInfo
from profkit.readers.kineto.split import UNREADABLE, Text
from profkit.readers.older_layouts import upgrade_capture

_BAD_ESCAPE: Final = re.compile(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
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
_COMPILES: Final = "compiles"
"""What ``torch.compile`` did, within what profkit wrote."""

_OLDER_KEY: Final = b'"stretch_share"'
"""A key that captures of earlier versions have in their cost."""

Header = Mapping[str, msgspec.Raw]


def header_of(text: Text) -> Header | None:
    """The top-level keys of a trace, without its events; None where they cannot be read."""
    if text.bare:
        return {}
    joined = text.head + b"]" + bytes(text.tail)
    closed = joined if text.complete else joined + b"}"
    candidates = (closed, _BAD_ESCAPE.sub(rb"\\\\", closed), text.head + b"]}")
    return next((found for c in candidates if (found := _decoded(c)) is not None), None)


def _decoded(text: bytes) -> Header | None:
    try:
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except UNREADABLE:
        return None


def _value(header: Header, key: str, kind: Any, default: Any) -> Any:  # noqa: ANN401  (as the key has it)
    """A key's value, or the default where it is missing or of another kind."""
    raw = header.get(key)
    if raw is None:
        return default
    try:
        return msgspec.json.decode(raw, type=kind, strict=False)
    except UNREADABLE:
        return default


def devices(header: Header) -> dict[int, DeviceInfo]:
    """What ``deviceProperties`` says, by ordinal."""
    described = {}
    for properties in _value(header, "deviceProperties", list[Any], []):
        found = _device(properties)
        if found is not None:
            described[found.index] = found
    return described


def _device(properties: Any) -> DeviceInfo | None:  # noqa: ANN401  (whatever the file has there)
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
    """What the recording was asked to keep.

    Kineto writes a flag only where it is set, so a flag that is missing from a file with others
    was off; and what is in the events was recorded whatever the flags say.
    """
    flags = {
        "stacks": _flag(header, "with_stack"),
        "shapes": _flag(header, "record_shapes"),
        "memory": _flag(header, "profile_memory"),
        "modules": _flag(header, "with_modules"),
        "flops": _flag(header, "with_flops"),
    }
    if any(flags.values()):
        flags = {key: bool(value) for key, value in flags.items()}
    if has_stacks:
        flags["stacks"] = True
    if has_memory:
        flags["memory"] = True
    return RecordedWith(**flags)


def _flag(header: Header, key: str) -> bool | None:
    value = _value(header, key, int, None)
    return None if value is None else bool(value)


def distributed(header: Header) -> tuple[int | None, int | None]:
    """Rank and world size, or None each."""
    found = _value(header, "distributedInfo", DistributedInfo, DistributedInfo())
    return found.rank, found.world_size


def versions(header: Header) -> dict[str, str]:
    """Versions of the driver's and the vendor's libraries, as the file has them."""
    found = {key: _value(header, key, Any, None) for key in _VERSIONS}
    return {key: str(value) for key, value in found.items() if value is not None}


def messages(header: Header) -> dict[str, tuple[str, ...]]:
    """What Kineto wrote into the trace of its own troubles, by level."""
    found = {level: _value(header, level, list[Any], []) for level in _LEVELS}
    return {level: tuple(str(m) for m in listed) for level, listed in found.items() if listed}


def host(header: Header) -> str | None:
    """The machine's name, or None."""
    name: str | None = _value(header, "host_name", str, None)
    return name


def base_time_ns(header: Header) -> int:
    """Nanoseconds since 1970 that every time of the file is relative to; 0 where absolute."""
    base: int = _value(header, "baseTimeNanoseconds", int, 0)
    return base


def capture(header: Header) -> CaptureInfo | None:
    """What profkit wrote when it recorded the trace, or None.

    What is said of compiling is passed over where it is not as it should be; the rest holds.
    """
    found: CaptureInfo | None = _value(header, "profkit", CaptureInfo, None)
    if found is None or _OLDER_KEY in bytes(header["profkit"]):
        parts = upgrade_capture(_value(header, "profkit", dict[str, Any], {}))
        if found is None and parts.pop(_COMPILES, None) is None:
            return None
        with contextlib.suppress(msgspec.ValidationError):
            found = msgspec.convert(parts, CaptureInfo, strict=False)
    return found
