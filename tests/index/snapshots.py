"""Snapshots as torch writes them, from a few words: who allocated how much."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from profkit.engine.context import Context
from profkit.index.snapshot.device_memory import DeviceMemory
from profkit.model.snapshot import MemorySnapshot
from profkit.readers.snapshot.columns import convert_snapshot
from profkit.testing import SnapshotBuilder

Site = tuple[str, int, str]
"""A file, a line, a function."""
Block = tuple[Sequence[Site], int]
"""The frames of its stack, innermost first, and its bytes."""


def build_segment(blocks: Sequence[Block], device: int = 0, first_address: int = 1 << 40) -> Any:  # noqa: ANN401
    """Build a segment of active blocks, one behind the other."""
    entries, address = [], first_address
    for frames, n_bytes in blocks:
        entries.append(
            {
                "address": address,
                "size": n_bytes,
                "requested_size": n_bytes,
                "state": "active_allocated",
                "frames": [{"filename": f, "line": n, "name": name} for f, n, name in frames],
            }
        )
        address += n_bytes

    total = sum(n_bytes for _, n_bytes in blocks)
    return {
        "device": device,
        "address": first_address,
        "total_size": total,
        "allocated_size": total,
        "active_size": total,
        "stream": 0,
        "segment_type": "large",
        "blocks": entries,
    }


def content(blocks: Sequence[Block], device: int = 0) -> dict[str, Any]:
    """Return a snapshot of one device without a history."""
    return {"segments": [build_segment(blocks, device)], "device_traces": []}


def write(path: Path, blocks: Sequence[Block], device: int = 0) -> Path:
    """Write a snapshot of one device without a history."""
    path.write_bytes(pickle.dumps(content(blocks, device), protocol=4))
    return path


def snapshot(blocks: Sequence[Block], device: int = 0) -> MemorySnapshot:
    """Return the snapshot as profkit reads it, without a process that reads it."""
    return convert_snapshot(content(blocks, device), n_bytes=1 << 30)


def memories(b: SnapshotBuilder, whole: Any = None) -> tuple[DeviceMemory, ...]:  # noqa: ANN401
    """Return the device memories of a builder's snapshot, without a file or process.

    Args:
        b: The builder.
        whole: Its snapshot, where that was changed since.
    """
    built = convert_snapshot(b.to_dict() if whole is None else whole, len(b.to_bytes()))
    return Context(snapshot=built).device_memories
