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
"""More than the memory of any device, and small enough for a sum of thousands to fit into int64."""
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
"""More than the devices of any machine."""
_MAX_SETTING: Final = 10_000
"""Characters of a setting; longer ones are cut."""


def is_snapshot(data: Any) -> bool:  # noqa: ANN401  (any unpickled data)
    """Return whether plain data has the shape of a snapshot."""
    if type(data) is dict:
        return type(data.get("segments")) is list
    return type(data) is list and all(type(entry) is dict and "blocks" in entry for entry in data)


def convert_snapshot(data: Any, n_bytes: int) -> MemorySnapshot:  # noqa: ANN401  (unpickled data)
    """Convert a snapshot to columns, without a path.

    Args:
        data: Unpickled data for which :func:`is_snapshot` is true.
        n_bytes: Size of its pickle.

    Raises:
        Broken: It has more rows than bytes, because it refers to the same lists repeatedly, or
            more devices than any machine.
    """
    whole: Entry = data if type(data) is dict else {"segments": data}
    segments = whole["segments"]
    segment_entries = _select_entries(segments)
    traces = [trace if type(trace) is list else [] for trace in _list(whole, "device_traces")]
    annotations = _list(whole, "external_annotations")

    n_blocks = sum(len(_list(entry, "blocks")) for entry in segment_entries)
    n_rows = len(segments) + n_blocks + sum(map(len, traces)) + len(annotations)
    if n_rows > n_bytes:
        raise Broken("refers to the same entries repeatedly")

    numbers = StackNumbers()
    pools: dict[tuple[int, int], int] = {_DEFAULT_POOL: 0}
    segment_table = _convert_segments(segment_entries, pools, numbers)
    block_table, n_invalid_blocks = _convert_blocks(segment_entries, segment_table, numbers)
    history, n_invalid_events = _convert_history(traces, numbers)
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
        annotations=tuple(filter(None, map(_annotation, _select_entries(annotations)))),
        settings=_flatten_settings(whole.get("allocator_settings")),
        devices=devices,
        driver=_driver_bytes(whole.get(SNAPSHOT_KEY)),
        notes=SnapshotNotes(
            n_inconsistent_segments=_count_inconsistent(segment_table, block_table),
            n_skipped=len(segments) - len(segment_entries) + n_invalid_blocks + n_invalid_events,
        ),
    )


def _count_inconsistent(segments: SegmentTable, blocks: BlockTable) -> int:
    """Count the segments whose recorded sizes differ from the sums over their blocks."""
    differs = np.zeros(len(segments), dtype=np.bool_)
    for recorded, is_counted in (
        (segments.total_bytes, np.ones(len(blocks), dtype=np.bool_)),
        (segments.allocated_bytes, blocks.state == State.ALLOCATED),
        (segments.active_bytes, blocks.is_active),
    ):
        sums = np.zeros(len(segments), dtype=np.int64)
        np.add.at(sums, blocks.segment[is_counted], blocks.n_bytes[is_counted])
        differs |= sums != recorded
    return int(differs.sum())


def _list(entry: Entry, key: str) -> list[Any]:
    value = entry.get(key)
    return value if type(value) is list else []


def _select_entries(values: list[Any]) -> list[Entry]:
    """Return the values that are dictionaries; the list itself if all are."""
    if set(map(type, values)) <= {dict}:
        return values
    return [value for value in values if type(value) is dict]


def _integers(entries: Sequence[Entry], key: str, missing: int = 0) -> npt.NDArray[np.int64]:
    """Return a column of integers."""
    # Values are checked one by one only if a whole column of them is not valid.
    try:
        return np.fromiter(map(itemgetter(key), entries), np.int64, len(entries))
    except (KeyError, TypeError, ValueError, OverflowError):
        checked = (_to_integer(entry.get(key, missing), missing) for entry in entries)
        return np.fromiter(checked, np.int64, len(entries))


def _to_integer(value: Any, missing: int) -> int:  # noqa: ANN401  (any unpickled data)
    """Convert a value to a signed integer of 64 bits; unsigned ones, such as addresses, wrap."""
    if type(value) is float and abs(value) < float(_INT64.max):
        return int(value)
    if type(value) not in {int, bool}:
        return missing
    if _INT64.max < value <= np.iinfo(np.uint64).max:
        return int(value) - (1 << 64)
    return int(value) if _INT64.min < value <= _INT64.max else missing


def _lengths(entries: Sequence[Entry], key: str) -> npt.NDArray[np.int64]:
    """Return a column of lengths in bytes, clipped to the range of plausible values."""
    return np.clip(_integers(entries, key), 0, _MAX_BYTES)


def _ordinals(entries: Sequence[Entry], key: str) -> npt.NDArray[np.int32]:
    """Return a column of small integers, such as ordinals of devices."""
    values = _integers(entries, key)
    limits = np.iinfo(np.int32)
    return np.clip(values, limits.min, limits.max).astype(np.int32)


def _codes(
    entries: Sequence[Entry], key: str, codes: dict[str, int], default: int
) -> npt.NDArray[np.uint8]:
    """Return a column of names as codes, with the default for a name without a code."""
    try:
        names = map(itemgetter(key), entries)
        return np.fromiter(map(codes.__getitem__, names), np.uint8, len(entries))
    except (KeyError, TypeError):
        values = (entry.get(key) for entry in entries)
        checked = (codes.get(v, default) if type(v) is str else default for v in values)
        return np.fromiter(checked, np.uint8, len(entries))


def _flags(entries: Sequence[Entry], test: Callable[[Entry], bool]) -> npt.NDArray[np.bool_]:
    return np.fromiter(map(test, entries), np.bool_, len(entries))


def _convert_segments(
    entries: Sequence[Entry], pools: dict[tuple[int, int], int], numbers: StackNumbers
) -> SegmentTable:
    """Convert the segments to columns, and add their pools with numbers in order of appearance."""
    pool = (pools.setdefault(_pool(entry), len(pools)) for entry in entries)
    return SegmentTable(
        device=_ordinals(entries, "device"),
        address=_integers(entries, "address"),
        total_bytes=_lengths(entries, "total_size"),
        allocated_bytes=_lengths(entries, "allocated_size"),
        active_bytes=_lengths(entries, "active_size"),
        stream=_integers(entries, "stream"),
        is_large=_flags(entries, lambda entry: entry.get("segment_type") == "large"),
        is_expandable=_flags(entries, lambda entry: entry.get("is_expandable") is True),
        pool=np.fromiter(pool, np.int32, len(entries)),
        stack=numbers.number(entry.get("frames") for entry in entries),
    )


def _pool(entry: Entry) -> tuple[int, int]:
    value = entry.get("segment_pool_id", _DEFAULT_POOL)
    if type(value) in {tuple, list} and [type(part) for part in value[:3]] == [int, int]:
        return (value[0], value[1])
    return _DEFAULT_POOL


def _convert_blocks(
    entries: Sequence[Entry], segments: SegmentTable, numbers: StackNumbers
) -> tuple[BlockTable, int]:
    """Convert the blocks of all segments to columns, and count the invalid ones."""
    by_segment = [_select_entries(_list(entry, "blocks")) for entry in entries]
    n_blocks = list(map(len, by_segment))
    blocks = list(chain.from_iterable(by_segment))
    n_invalid = sum(len(_list(entry, "blocks")) for entry in entries) - len(blocks)

    # Older versions write no addresses, but the blocks of a segment follow each other.
    segment = np.repeat(np.arange(len(entries), dtype=np.int32), n_blocks)
    n_bytes = _lengths(blocks, "size")
    offset = np.cumsum(n_bytes) - n_bytes
    first_block = np.repeat(np.cumsum(n_blocks, dtype=np.int64) - n_blocks, n_blocks)
    segment_offset = offset[first_block] if len(first_block) else 0
    computed_address = segments.address[segment] + offset - segment_offset
    address = _integers(blocks, "address", MISSING)

    # Before torch 2.0 a block's requested size and stack are in its history, latest first.
    history = [_latest_entry(block) for block in blocks]
    requested = _integers(blocks, "requested_size", MISSING)
    real = _integers(history, "real_size", MISSING)
    frames = [
        block["frames"] if "frames" in block else latest.get("frames")
        for block, latest in zip(blocks, history, strict=True)
    ]
    table = BlockTable(
        segment=segment,
        address=np.where(address == MISSING, computed_address, address),
        n_bytes=n_bytes,
        requested_bytes=np.where(real == MISSING, requested, real),
        state=_codes(blocks, "state", {k: int(v) for k, v in _STATES.items()}, int(State.UNKNOWN)),
        stack=numbers.number(frames),
    )
    return table, n_invalid


def _latest_entry(block: Entry) -> Entry:
    history = block.get("history")
    if type(history) is list and history and type(history[0]) is dict:
        return history[0]
    return {}


def _convert_history(traces: list[list[Any]], numbers: StackNumbers) -> tuple[HistoryTable, int]:
    """Convert the history of all devices to columns, and count the invalid entries."""
    values = traces[0] if len(traces) == 1 else list(chain.from_iterable(traces))
    device = np.repeat(np.arange(len(traces), dtype=np.int32), list(map(len, traces)))
    entries = _select_entries(values)
    n_invalid = len(values) - len(entries)
    if n_invalid:
        device = device[[type(value) is dict for value in values]]

    # An out-of-memory error has the free memory of the device, and no address.
    action = _codes(entries, "action", _ACTIONS, int(Action.OTHER))
    address = _integers(entries, "addr", MISSING)
    oom_rows = np.flatnonzero(action == Action.OOM).astype(np.int32)
    address[oom_rows] = MISSING
    free = _integers([entries[row] for row in oom_rows.tolist()], "device_free", MISSING)

    table = HistoryTable(
        device=device,
        action=action,
        address=address,
        n_bytes=_lengths(entries, "size"),
        stream=_integers(entries, "stream"),
        time_us=_integers(entries, "time_us", MISSING),
        stack=numbers.number(entry.get("frames") for entry in entries),
        free_bytes=SparseColumn(oom_rows[free != MISSING], free[free != MISSING]),
    )
    return table, n_invalid


def _annotation(entry: Entry) -> Annotation | None:
    name, stage = entry.get("name"), entry.get("stage")
    if type(name) is not str or stage not in {"START", "END"}:
        return None
    return Annotation(
        name=name,
        device=_to_integer(entry.get("device"), 0),
        time_us=_to_integer(entry.get("time_us"), 0),
        is_start=stage == "START",
    )


def _flatten_settings(settings: Any) -> dict[str, str | int | float | bool]:  # noqa: ANN401
    """Return the allocator's settings, with nested ones as ``1:0 2:0``."""
    if type(settings) is not dict:
        return {}
    flat: dict[str, str | int | float | bool] = {}
    for key, value in settings.items():
        if type(key) is str and _is_setting(value):
            flat[key] = value[:_MAX_SETTING] if type(value) is str else value
        elif type(key) is str and type(value) is dict:
            simple = [(k, v) for k, v in value.items() if _is_setting(k) and _is_setting(v)]
            flat[key] = " ".join(f"{k}:{v}" for k, v in simple)[:_MAX_SETTING]
    return flat


def _is_setting(value: Any) -> bool:  # noqa: ANN401  (any unpickled data)
    """Return whether a value is text, a flag, or a finite number that fits into 64 bits."""
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is str or (type(value) in {int, bool} and abs(value) <= _INT64.max)


def _driver_bytes(data: Any) -> tuple[DeviceBytes, ...]:  # noqa: ANN401  (any unpickled data)
    """Return the use of each device's memory, where all required figures are present."""
    devices = []
    for entry in _select_entries(_list(data, "devices")) if type(data) is dict else ():
        figures: dict[str, Any] = {f.name: entry.get(f.name) for f in fields(DeviceBytes)}
        required = [figures[f.name] for f in fields(DeviceBytes) if f.default is NO_DEFAULT]
        present = [figure for figure in figures.values() if figure is not None]
        if None not in required and all(type(n) is int and n >= 0 for n in present):
            devices.append(DeviceBytes(**figures))
    return tuple(devices)
