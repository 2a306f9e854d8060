"""A fake of the private functions of torch that reach the CUDA allocator.

Everything above them is torch itself: ``torch.cuda.memory`` and ``torch.cuda._lazy_call``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from profkit.capture.memory.cuda import history

Observer = Callable[[int, int, int, int], None]
GIB = 1 << 30


@dataclass
class FakeCuda:
    """An allocator that records a history as the CUDA allocator does.

    Attributes:
        is_on: Whether it records its history.
        requests: Every call that turns recording on or off, with torch's arguments.
        entries: The history.
        observers: Called when memory runs out.
        is_initialized: Whether the program has initialized CUDA.
        fails: Whether it refuses to record, as the asynchronous allocator does.
        n_allocated: Blocks that were allocated so far, recorded or not.
    """

    is_on: bool = False
    requests: list[tuple[Any, ...]] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)
    observers: list[Observer] = field(default_factory=list)
    is_initialized: bool = True
    fails: bool = False
    n_allocated: int = 0

    def record(self, enabled: str | None, *rest: object) -> None:
        """Stands for ``_cuda_record_memory_history``: turning it off clears the history."""
        if self.fails:
            raise RuntimeError("cudaMallocAsync does not yet support recordHistory.")
        self.requests.append((enabled, *rest))
        self.is_on = enabled is not None
        if not self.is_on:
            self.entries.clear()

    def allocate(self, n_bytes: int = 512) -> None:
        """Allocate a block at a source line."""
        self.n_allocated += 1
        if self.is_on:
            frames = [{"filename": "train.py", "line": 3, "name": "step"}]
            self.entries.append(
                {
                    "action": "alloc",
                    "addr": 4096,
                    "size": n_bytes,
                    "stream": 0,
                    "time_us": 1,
                    "frames": frames,
                }
            )

    def snapshot(self, *_pool: object) -> dict[str, Any]:
        """Stands for ``_cuda_memorySnapshot``, which is recorded as well."""
        if self.is_on:
            self.entries.append({"action": "snapshot", "addr": 0, "size": 0, "stream": 0})
        return {"segments": [], "device_traces": [list(self.entries)], "allocator_settings": {}}

    def run_out(self, n_bytes: int) -> None:
        """Fail to allocate, as the allocator does: observers first, then the error."""
        if self.is_on:
            self.entries.append({"action": "oom", "size": n_bytes, "device_free": 7, "stream": 0})
        for observer in self.observers:
            observer(0, n_bytes, 80 * GIB, 7)
        raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {n_bytes} bytes.")

    def initialize(self) -> None:
        """Initialize CUDA and run queued calls, as ``torch.cuda._lazy_init`` does."""
        self.is_initialized = True
        for call, _ in torch.cuda._queued_calls:
            call()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace CUDA in torch."""
        monkeypatch.setattr(history._state, "torch_without_cuda", None)
        monkeypatch.setattr(history._state, "is_switched_by_program", False)

        for name, function in (
            ("_cuda_record_memory_history", self.record),
            ("_cuda_isHistoryEnabled", lambda: self.is_on),
            ("_cuda_memorySnapshot", self.snapshot),
            ("_cuda_attach_out_of_memory_observer", self.observers.append),
        ):
            monkeypatch.setattr(torch._C, name, function, raising=False)
        for name, answer in (
            ("is_initialized", lambda: self.is_initialized),
            ("device_count", lambda: 1),
            ("current_device", lambda: 0),
            ("memory_reserved", lambda _device: 3 * GIB),
            ("mem_get_info", lambda _device: (70 * GIB, 80 * GIB)),
            ("memory_stats", lambda: {"allocation.all.allocated": self.n_allocated}),
        ):
            monkeypatch.setattr(torch.cuda, name, answer)

        monkeypatch.setattr(torch.cuda, "_queued_calls", [])
