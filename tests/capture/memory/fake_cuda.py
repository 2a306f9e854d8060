"""The few private functions of torch that reach CUDA's allocator, played by plain Python.

Everything above them is torch's own: ``torch.cuda.memory`` and ``torch.cuda._lazy_call``.
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
    """An allocator that keeps a history as CUDA's does.

    Attributes:
        is_on: Whether it keeps a history.
        asked: Every request to keep or drop it, as torch hands it down.
        entries: The history.
        observers: What is called when memory runs out.
        is_started: Whether the program has started CUDA.
        fails: Whether it refuses to keep a history, as the asynchronous allocator does.
    """

    is_on: bool = False
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)
    observers: list[Observer] = field(default_factory=list)
    is_started: bool = True
    fails: bool = False

    def record(self, enabled: str | None, *rest: object) -> None:
        """As ``_cuda_record_memory_history``: turning it off empties the history."""
        if self.fails:
            raise RuntimeError("cudaMallocAsync does not yet support recordHistory.")
        self.asked.append((enabled, *rest))
        self.is_on = enabled is not None
        if not self.is_on:
            self.entries.clear()

    def allocate(self, n_bytes: int = 512) -> None:
        """Allocate a block, from a line of a program."""
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

    def snapshot(self, _pool: object) -> dict[str, Any]:
        """As ``_cuda_memorySnapshot``, which leaves an entry of its own."""
        if self.is_on:
            self.entries.append({"action": "snapshot", "addr": 0, "size": 0, "stream": 0})
        return {"segments": [], "device_traces": [list(self.entries)], "allocator_settings": {}}

    def run_out(self, n_bytes: int) -> None:
        """Ask for more than there is, as the allocator does: observers first, then the error."""
        if self.is_on:
            self.entries.append({"action": "oom", "size": n_bytes, "device_free": 7, "stream": 0})
        for observer in self.observers:
            observer(0, n_bytes, 80 * GIB, 7)
        raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {n_bytes} bytes.")

    def start(self) -> None:
        """Start CUDA, and all that waits for it, as ``torch.cuda._lazy_init`` does."""
        self.is_started = True
        for call, _ in torch.cuda._queued_calls:
            call()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of CUDA in torch."""
        monkeypatch.setattr(history, "_without_cuda", None)
        for name, function in (
            ("_cuda_record_memory_history", self.record),
            ("_cuda_isHistoryEnabled", lambda: self.is_on),
            ("_cuda_memorySnapshot", self.snapshot),
            ("_cuda_attach_out_of_memory_observer", self.observers.append),
        ):
            monkeypatch.setattr(torch._C, name, function, raising=False)
        for name, answer in (
            ("is_initialized", lambda: self.is_started),
            ("device_count", lambda: 1),
            ("current_device", lambda: 0),
            ("memory_reserved", lambda _device: 3 * GIB),
            ("mem_get_info", lambda _device: (70 * GIB, 80 * GIB)),
        ):
            monkeypatch.setattr(torch.cuda, name, answer)
        monkeypatch.setattr(torch.cuda, "_queued_calls", [])
