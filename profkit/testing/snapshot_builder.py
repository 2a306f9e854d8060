"""Builds allocator snapshots from a program's allocations, with the exact expected state."""

import gzip
import pickle
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from profkit.dataclass import dataclass
from profkit.testing.reference_allocator import (
    COMMON_POOL,
    OutOfDeviceMemoryError,
    Pool,
    ReferenceAllocator,
    ReferenceBlock,
    Segment,
)

Layout = Literal["segments", "2.0", "2.3", "2.8"]
FrameLike = tuple[str, int, str]

_STEP_US: Final = 10
_FIRST_US: Final = 1_700_000_000_000_000
_DIVISIONS: Final = {str(1 << power): 0 for power in range(16)}


@dataclass(frozen=True)
class Moment:
    """The exact state of a device's memory at one moment, to compare a reconstruction with.

    Attributes:
        n_entries: Entries of its history up to then, including those that were overwritten since.
        active_bytes: Size of the active blocks.
        reserved_bytes: Memory that the allocator had obtained from the driver.
        blocks: Address, size, requested size and stack (innermost frame first) of every active
            block, by address.
        holes: Address and size of every free block, by address.
    """

    n_entries: int
    active_bytes: int
    reserved_bytes: int
    blocks: tuple[tuple[int, int, int, tuple[FrameLike, ...]], ...]
    holes: tuple[tuple[int, int], ...]


@dataclass
class SnapshotBuilder:
    """Builds a snapshot from allocations and frees.

    Attributes:
        total_bytes: Memory of each device.
        outside_bytes: Memory of it that other programs and libraries use.
        expandable: ``expandable_segments``.
        max_split_bytes: ``max_split_size``, or None.
        max_entries: Size of a device's history buffer; older entries are overwritten.
        with_stacks: Whether stacks are recorded.
        device: The current device.
    """

    total_bytes: int = 80 << 30
    outside_bytes: int = 0
    expandable: bool = False
    max_split_bytes: int | None = None
    max_entries: int = 1 << 20
    with_stacks: bool = True
    device: int = 0
    _memory: dict[int, ReferenceAllocator] = field(default_factory=dict, repr=False)
    _entries: dict[int, list[dict[str, Any]]] = field(default_factory=dict, repr=False)
    _stacks: list[tuple[FrameLike, ...]] = field(default_factory=list, repr=False)
    _frames: list[FrameLike] = field(default_factory=list, repr=False)
    _annotations: list[dict[str, Any]] = field(default_factory=list, repr=False)
    _recording: bool = field(default=True, repr=False)
    _now_us: int = field(default=_FIRST_US, repr=False)

    @contextmanager
    def frame(self, file: str, line: int, function: str) -> Iterator[None]:
        """Call a function around a block; stacks have the innermost frame first."""
        self._frames.insert(0, (file, line, function))
        try:
            yield
        finally:
            self._frames.pop(0)

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Run a block before history is recorded: no entries, and allocations without stacks."""
        self._recording, before = False, self._recording
        try:
            yield
        finally:
            self._recording = before

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        """Annotate a block with a region, as ``record_function`` does."""
        self._annotate(name, "START")
        try:
            yield
        finally:
            self._annotate(name, "END")

    def alloc(self, n_bytes: int, *, stream: int = 0, pool: Pool = COMMON_POOL) -> ReferenceBlock:
        """Allocate a tensor.

        Args:
            n_bytes: Its size.
            pool: Id of a memory pool; a private one for a CUDA graph.

        Raises:
            OutOfDeviceMemoryError: The device is out of memory; the history has the OOM event.
        """
        return self._of_device().malloc(n_bytes, stream=stream, pool=pool, stack=self._stack())

    def alloc_or_none(self, n_bytes: int, *, stream: int = 0) -> ReferenceBlock | None:
        """Allocate a tensor, or return None if the device is out of memory."""
        try:
            return self.alloc(n_bytes, stream=stream)
        except OutOfDeviceMemoryError:
            return None

    def free(self, *blocks: ReferenceBlock) -> None:
        """Free tensors."""
        for block in blocks:
            self._of_device().free(block, self._stack())

    def record_stream(self, block: ReferenceBlock, stream: int) -> None:
        """Call ``tensor.record_stream``: a freed block stays active until the stream is done."""
        block.streams.add(stream)

    def finish(self, stream: int) -> None:
        """Finish the work of a stream, which completes frees that are pending only on it."""
        for segment in self._of_device().segments:
            # A completed free merges blocks, so the list is copied before it changes.
            for block in [used for used in segment.blocks if stream in used.streams]:
                block.streams.discard(stream)
                if block.state == "active_pending_free" and not block.streams:
                    self._of_device().complete(block, self._stack())

    @property
    def now_us(self) -> int:
        """Time of the latest history entry, in microseconds since 1970."""
        return self._now_us

    def empty_cache(self) -> None:
        """Call ``torch.cuda.empty_cache()``, with torch's frame in the stack of its entries."""
        with self.frame(
            "/venv/lib/python3.12/site-packages/torch/cuda/memory.py", 218, "empty_cache"
        ):
            self._of_device().release(self._stack())

    def moment(self) -> Moment:
        """Return the current state of the current device."""
        memory = self._of_device()
        blocks = [block for segment in memory.segments for block in segment.blocks]
        blocks.sort(key=lambda block: block.address)
        active = [block for block in blocks if block.state != "inactive"]

        return Moment(
            n_entries=len(self._entries[self.device]),
            active_bytes=sum(block.n_bytes for block in active),
            reserved_bytes=memory.reserved_bytes,
            blocks=tuple(map(self._summarize, active)),
            holes=tuple((b.address, b.n_bytes) for b in blocks if b.state == "inactive"),
        )

    def _summarize(self, block: ReferenceBlock) -> tuple[int, int, int, tuple[FrameLike, ...]]:
        stack = () if block.stack is None else self._stacks[block.stack]
        return block.address, block.n_bytes, block.requested_bytes, stack

    def _of_device(self) -> ReferenceAllocator:
        device = self.device
        if device not in self._memory:
            self._entries[device] = []
            self._memory[device] = ReferenceAllocator(
                partial(self._add_entry, device),
                self.total_bytes,
                self.outside_bytes,
                self.expandable,
                self.max_split_bytes,
            )
        return self._memory[device]

    def _stack(self) -> int | None:
        if not self._recording or not self.with_stacks or not self._frames:
            return None
        self._stacks.append(tuple(self._frames))
        return len(self._stacks) - 1

    def _annotate(self, name: str, stage: str) -> None:
        self._now_us += _STEP_US
        self._annotations.append(
            {"name": name, "stage": stage, "device": self.device, "time_us": self._now_us}
        )

    def _add_entry(
        self,
        device: int,
        action: str,
        address: int,
        n_bytes: int,
        stream: int,
        stack: int | None,
        pool: Pool,
    ) -> None:
        if not self._recording:
            return

        # torch writes the device's free memory in place of an address that it could not get.
        self._now_us += _STEP_US
        address_field = {"device_free": address} if action == "oom" else {"addr": address}
        entry = {
            "action": action,
            **address_field,
            "size": n_bytes,
            "stream": stream,
            "time_us": self._now_us,
            "compile_context": "N/A",
            "user_metadata": "",
            "pool_id": pool,
            "_stack": stack,
        }
        self._entries[device].append(entry)

    def to_dict(self, layout: Layout = "2.8") -> Any:  # noqa: ANN401  (a list or a dictionary)
        """Build the snapshot as ``torch.cuda.memory._snapshot()`` returns it.

        Args:
            layout: torch's version: ``segments``, a bare list before 2.0; ``2.0`` with traces;
                ``2.3`` with settings and times; ``2.8`` with annotations and pools.
        """
        # Blocks and entries share the lists of frames, as in torch: a pickle has each stack once.
        stacks = [[_describe_frame(frame) for frame in stack] for stack in self._stacks]
        segments = [
            self._describe_segment(device, segment, stacks, layout)
            for device, memory in sorted(self._memory.items())
            for segment in memory.segments
        ]
        if layout == "segments":
            return segments

        n_devices = max(self._memory, default=-1) + 1
        traces = [
            [self._describe_entry(entry, stacks, layout) for entry in self._buffered(device)]
            for device in range(n_devices)
        ]
        snapshot: dict[str, Any] = {"segments": segments, "device_traces": traces}
        if layout in {"2.3", "2.8"}:
            snapshot["allocator_settings"] = self._settings()
        if layout == "2.8":
            snapshot["external_annotations"] = self._annotations
        return snapshot

    def to_bytes(self, layout: Layout = "2.8") -> bytes:
        """Return the snapshot as a pickle of protocol 4, as torch dumps it."""
        return pickle.dumps(self.to_dict(layout), protocol=4)

    def write(self, path: str | Path, layout: Layout = "2.8") -> Path:
        """Write the snapshot to a file, gzipped when the name ends in ``.gz``; return the path."""
        target, data = Path(path), self.to_bytes(layout)
        target.write_bytes(gzip.compress(data, mtime=0) if target.suffix == ".gz" else data)
        return target

    def _buffered(self, device: int) -> Iterable[Mapping[str, Any]]:
        # torch's history has a fixed size: new entries overwrite the oldest ones.
        entries = self._entries.get(device, [])
        return entries[max(0, len(entries) - self.max_entries) :]

    def _describe_entry(
        self, entry: Mapping[str, Any], stacks: list[list[dict[str, Any]]], layout: Layout
    ) -> dict[str, Any]:
        later = {"compile_context", "user_metadata", "pool_id"} if layout != "2.8" else set()
        hidden = later | ({"time_us"} if layout == "2.0" else set()) | {"_stack"}
        fields = {key: value for key, value in entry.items() if key not in hidden}
        if entry["_stack"] is not None:
            fields["frames"] = stacks[entry["_stack"]]
        return fields

    def _describe_segment(
        self, device: int, segment: Segment, stacks: list[list[dict[str, Any]]], layout: Layout
    ) -> dict[str, Any]:
        active = [block for block in segment.blocks if block.state != "inactive"]
        allocated = [block for block in active if block.state == "active_allocated"]
        fields: dict[str, Any] = {
            "device": device,
            "address": segment.address,
            "total_size": segment.n_bytes,
            "allocated_size": sum(block.n_bytes for block in allocated),
            "active_size": sum(block.n_bytes for block in active),
            "requested_size": sum(block.requested_bytes for block in active),
            "stream": segment.lane.stream,
            "segment_type": "small" if segment.lane.is_small else "large",
            "blocks": [_describe_block(block, stacks, layout) for block in segment.blocks],
        }
        if layout == "segments":
            return fields

        fields["frames"] = [] if segment.stack is None else stacks[segment.stack]
        if layout != "2.0":
            fields["is_expandable"] = segment.is_expandable
        if layout == "2.8":
            fields["segment_pool_id"] = segment.lane.pool
        return fields

    def _settings(self) -> dict[str, Any]:
        return {
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True" if self.expandable else "",
            "max_split_size": -1 if self.max_split_bytes is None else self.max_split_bytes,
            "garbage_collection_threshold": 0.0,
            "expandable_segments": self.expandable,
            "roundup_power2_divisions": dict(_DIVISIONS),
        }


def _describe_frame(frame: FrameLike) -> dict[str, Any]:
    file, line, function = frame
    return {"filename": file, "line": line, "name": function}


def _describe_block(
    block: ReferenceBlock, stacks: list[list[dict[str, Any]]], layout: Layout
) -> dict[str, Any]:
    frames = [] if block.stack is None else stacks[block.stack]
    if layout == "segments":
        fields: dict[str, Any] = {"size": block.n_bytes, "state": block.state}
        if block.stack is not None and block.state != "inactive":
            last = {"addr": block.address, "real_size": block.requested_bytes, "frames": frames}
            fields["history"] = [last]
        return fields

    return {
        "address": block.address,
        "size": block.n_bytes,
        "requested_size": block.requested_bytes,
        "state": block.state,
        "frames": frames,
    }
