"""Converts a snapshot's lists and dictionaries to columns of the model.

The input is not trusted: entries that are not as torch writes them are skipped and counted, and
invalid numbers become 0 or :data:`~profkit.model.events.MISSING`. Rows are counted before they are
read, since a pickle of a few bytes can refer to one list a million times.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import fields
from itertools import chain
from operator import itemgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from profkit.model.device_bytes import SNAPSHOT_KEY, DeviceBytes
from profkit.model.events import MISSING, SparseColumn
from profkit.model.snapshot import (
    Action,
    Annotation,
    BlockTable,
    HistoryTable,
    MemorySnapshot,
    SegmentTable,
    SnapshotNotes,
    State,
)
from profkit.readers.snapshot.restricted_unpickler import Broken
from profkit.readers.snapshot.stacks import StackNumbers

Entry = dict[str, Any]

_INT64: Final = np.iinfo(np.int64)
_MAX_BYTES: Final = 1 << 48
"""More than any device has, and small enough for a sum of thousands to fit into int64."""
_STATES: Final = {
    "active_allocated": State.ALLOCATED,
    "inactive": State.INACTIVE,
    "active_pending_free": State.PENDING_FREE,
    "active_awaiting_free": State.PENDING_FREE,
}
_ACTIONS: Final = {
    action.name.lower(): int(action) for action in Action if action is not Action.OTHER
}
_DEFAULT_POOL: Final = (0, 0)
_MAX_DEVICES: Final = 128
"""More than any machine has."""
_MAX_SETTING: Final = 10_000
"""Characters of a setting; longer ones are cut."""


def is_snapshot(data: Any) -> bool:  # noqa: ANN401  (any unpickled data)
    """Whether plain data has the shape of a snapshot."""
    if type(data) is dict:
        return type(data.get("segments")) is list
    return type(data) is list and all(type(each) is dict and "blocks" in each for each in data)


def snapshot_of(data: Any, n_bytes: int) -> MemorySnapshot:  # noqa: ANN401  (any unpickled data)
    """A snapshot in columns, without a path.

    Args:
        data: Unpickled data for which :func:`is_snapshot` is true.
        n_bytes: Size of its pickle.

    Raises:
        Broken: It has more rows than bytes, because it refers to the same lists repeatedly, or
            more devices than any machine.
    """
    whole: Entry = data if type(data) is dict else {"segments": data}
    numbers = StackNumbers()
    listed = whole["segments"]
    segments = _entries(listed)
    n_blocks = sum(len(_list(each, "blocks")) for each in segments)
    traces = [each if type(each) is list else [] for each in _list(whole, "device_traces")]
    listed_annotations = _list(whole, "external_annotations")
    n_rows = len(listed) + n_blocks + sum(map(len, traces)) + len(listed_annotations)
    if n_rows > n_bytes:
        raise Broken("refers to the same entries repeatedly")
    pools: dict[tuple[int, int], int] = {_DEFAULT_POOL: 0}
    segment_table = _segments(segments, pools, numbers)
    block_table, n_invalid_blocks = _blocks(segments, segment_table, numbers)
    history, n_invalid_events = _history(traces, numbers)
    annotations = [note for each in _entries(listed_annotations) if (note := _annotation(each))]
    devices = tuple(np.union1d(segment_table.device, history.device).tolist())
    if len(devices) > _MAX_DEVICES:
        raise Broken(f"has {len(devices)} devices")
    return MemorySnapshot(
        path="",
        segments=segment_table,
        blocks=block_table,
        history=history,
        stacks=numbers.stacks(),
        pools=tuple(pools),
        annotations=tuple(annotations),
        settings=_settings(whole.get("allocator_settings")),
        devices=devices,
        driver=_driver(whole.get(SNAPSHOT_KEY)),
        notes=SnapshotNotes(
            n_inconsistent_segments=_n_inconsistent_segments(segment_table, block_table),
            n_skipped=len(listed) - len(segments) + n_invalid_blocks + n_invalid_events,
        ),
    )


def _n_inconsistent_segments(segments: SegmentTable, blocks: BlockTable) -> int:
    """Segments whose recorded sizes differ from the sums over their blocks."""
    differs = np.zeros(len(segments), dtype=np.bool_)
    for recorded, counted in (
        (segments.total_bytes, np.ones(len(blocks), dtype=np.bool_)),
        (segments.allocated_bytes, blocks.state == State.ALLOCATED),
        (segments.active_bytes, blocks.is_active),
    ):
        sums = np.zeros(len(segments), dtype=np.int64)
        np.add.at(sums, blocks.segment[counted], blocks.n_bytes[counted])
        differs |= sums != recorded
    return int(differs.sum())


def _list(entry: Entry, key: str) -> list[Any]:
    value = entry.get(key)
    return value if type(value) is list else []


def _entries(values: list[Any]) -> list[Entry]:
    """Those values that are dictionaries; the list itself if all are."""
    if set(map(type, values)) <= {dict}:
        return values
    return [value for value in values if type(value) is dict]


def _integers(entries: Sequence[Entry], key: str, missing: int = 0) -> npt.NDArray[np.int64]:
    """A column of integers."""
    try:
        return np.fromiter(map(itemgetter(key), entries), np.int64, len(entries))
    except (KeyError, TypeError, ValueError, OverflowError):
        checked = (_integer(each.get(key, missing), missing) for each in entries)
        return np.fromiter(checked, np.int64, len(entries))


def _integer(value: Any, missing: int) -> int:  # noqa: ANN401  (any unpickled data)
    """A value as a signed integer of 64 bits; larger unsigned values, such as addresses, wrap."""
    if type(value) is float and abs(value) < float(_INT64.max):
        return int(value)
    if type(value) not in {int, bool}:
        return missing
    if _INT64.max < value <= np.iinfo(np.uint64).max:
        return int(value) - (1 << 64)
    return int(value) if _INT64.min < value <= _INT64.max else missing


def _lengths(entries: Sequence[Entry], key: str) -> npt.NDArray[np.int64]:
    """A column of lengths in bytes, clipped to the range of plausible values."""
    return np.clip(_integers(entries, key), 0, _MAX_BYTES)


def _small(entries: Sequence[Entry], key: str) -> npt.NDArray[np.int32]:
    """A column of small integers, such as ordinals of devices."""
    wide = _integers(entries, key)
    narrow = np.iinfo(np.int32)
    return np.clip(wide, narrow.min, narrow.max).astype(np.int32)


def _codes(
    entries: Sequence[Entry], key: str, codes: dict[str, int], other: int
) -> npt.NDArray[np.uint8]:
    """A column of names as codes; ``other`` for a name that is not known."""
    try:
        names = map(itemgetter(key), entries)
        return np.fromiter(map(codes.__getitem__, names), np.uint8, len(entries))
    except (KeyError, TypeError):
        checked = (codes.get(name, other) if type(name := each.get(key)) is str else other
                   for each in entries)  # fmt: skip
        return np.fromiter(checked, np.uint8, len(entries))


def _flags(entries: Sequence[Entry], test: Callable[[Entry], bool]) -> npt.NDArray[np.bool_]:
    return np.fromiter(map(test, entries), np.bool_, len(entries))


def _segments(
    entries: Sequence[Entry], pools: dict[tuple[int, int], int], numbers: StackNumbers
) -> SegmentTable:
    return SegmentTable(
        device=_small(entries, "device"),
        address=_integers(entries, "address"),
        total_bytes=_lengths(entries, "total_size"),
        allocated_bytes=_lengths(entries, "allocated_size"),
        active_bytes=_lengths(entries, "active_size"),
        stream=_integers(entries, "stream"),
        is_large=_flags(entries, lambda each: each.get("segment_type") == "large"),
        is_expandable=_flags(entries, lambda each: each.get("is_expandable") is True),
        pool=np.fromiter(
            (pools.setdefault(_pool(each), len(pools)) for each in entries), np.int32, len(entries)
        ),
        stack=numbers.of(each.get("frames") for each in entries),
    )


def _pool(entry: Entry) -> tuple[int, int]:
    value = entry.get("segment_pool_id", _DEFAULT_POOL)
    if type(value) in {tuple, list} and [type(part) for part in value[:3]] == [int, int]:
        return (value[0], value[1])
    return _DEFAULT_POOL


def _blocks(
    entries: Sequence[Entry], segments: SegmentTable, numbers: StackNumbers
) -> tuple[BlockTable, int]:
    of_segment = [_entries(_list(each, "blocks")) for each in entries]
    n_blocks = list(map(len, of_segment))
    blocks = list(chain.from_iterable(of_segment))
    n_invalid = sum(len(_list(each, "blocks")) for each in entries) - len(blocks)
    segment = np.repeat(np.arange(len(entries), dtype=np.int32), n_blocks)
    n_bytes = _lengths(blocks, "size")
    before = np.cumsum(n_bytes) - n_bytes
    first = np.repeat(np.cumsum(n_blocks, dtype=np.int64) - n_blocks, n_blocks)
    follows = segments.address[segment] + before - (before[first] if len(first) else 0)
    address = _integers(blocks, "address", MISSING)
    # Before torch 2.0 a block's requested size and stack are in its history, latest first.
    history = [_latest(each) for each in blocks]
    requested = _integers(blocks, "requested_size", MISSING)
    real = _integers(history, "real_size", MISSING)
    frames = [
        each["frames"] if "frames" in each else last.get("frames")
        for each, last in zip(blocks, history, strict=True)
    ]
    table = BlockTable(
        segment=segment,
        address=np.where(address == MISSING, follows, address),
        n_bytes=n_bytes,
        requested_bytes=np.where(real == MISSING, requested, real),
        state=_codes(blocks, "state", {k: int(v) for k, v in _STATES.items()}, int(State.UNKNOWN)),
        stack=numbers.of(frames),
    )
    return table, n_invalid


def _latest(block: Entry) -> Entry:
    history = block.get("history")
    if type(history) is list and history and type(history[0]) is dict:
        return history[0]
    return {}


def _history(traces: list[list[Any]], numbers: StackNumbers) -> tuple[HistoryTable, int]:
    listed = traces[0] if len(traces) == 1 else list(chain.from_iterable(traces))
    device = np.repeat(np.arange(len(traces), dtype=np.int32), list(map(len, traces)))
    entries = _entries(listed)
    n_invalid = len(listed) - len(entries)
    if n_invalid:
        device = device[[type(each) is dict for each in listed]]
    action = _codes(entries, "action", _ACTIONS, int(Action.OTHER))
    address = _integers(entries, "addr", MISSING)
    at_oom = np.flatnonzero(action == Action.OOM).astype(np.int32)
    address[at_oom] = MISSING
    free = _integers([entries[row] for row in at_oom.tolist()], "device_free", MISSING)
    table = HistoryTable(
        device=device,
        action=action,
        address=address,
        n_bytes=_lengths(entries, "size"),
        stream=_integers(entries, "stream"),
        time_us=_integers(entries, "time_us", MISSING),
        stack=numbers.of(each.get("frames") for each in entries),
        free_bytes=SparseColumn(at_oom[free != MISSING], free[free != MISSING]),
    )
    return table, n_invalid


def _annotation(entry: Entry) -> Annotation | None:
    name, stage = entry.get("name"), entry.get("stage")
    if type(name) is not str or stage not in {"START", "END"}:
        return None
    return Annotation(
        name=name,
        device=_integer(entry.get("device"), 0),
        time_us=_integer(entry.get("time_us"), 0),
        is_start=stage == "START",
    )


def _settings(value: Any) -> dict[str, str | int | float | bool]:  # noqa: ANN401  (any data)
    """The allocator's settings, with nested ones as ``1:0 2:0``."""
    if type(value) is not dict:
        return {}
    flat: dict[str, str | int | float | bool] = {}
    for key, each in value.items():
        if type(key) is str and _is_setting(each):
            flat[key] = each[:_MAX_SETTING] if type(each) is str else each
        elif type(key) is str and type(each) is dict:
            simple = [(k, v) for k, v in each.items() if _is_setting(k) and _is_setting(v)]
            flat[key] = " ".join(f"{k}:{v}" for k, v in simple)[:_MAX_SETTING]
    return flat


def _is_setting(value: Any) -> bool:  # noqa: ANN401  (any unpickled data)
    """Whether a value is text, a flag, or a number that is finite and fits into 64 bits."""
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is str or (type(value) in {int, bool} and abs(value) <= _INT64.max)


def _driver(own: Any) -> tuple[DeviceBytes, ...]:  # noqa: ANN401  (any unpickled data)
    """Which processes use the devices' memory, where all required figures are present."""
    found = []
    for entry in _entries(_list(own, "devices")) if type(own) is dict else ():
        figures: dict[str, Any] = {each.name: entry.get(each.name) for each in fields(DeviceBytes)}
        needed = [figures[each.name] for each in fields(DeviceBytes) if each.default is NO_DEFAULT]
        others = [each for each in figures.values() if each is not None]
        if None not in needed and all(type(each) is int and each >= 0 for each in others):
            found.append(DeviceBytes(**figures))
    return tuple(found)
