"""What CUDA's allocator did, kept with Python stacks, and written as a memory snapshot.

A program that keeps a history of its own is left alone: then it is the program's history that is
written, and nobody clears it or turns it off.

Source: ``torch.cuda.memory._record_memory_history`` and ``_snapshot``;
``c10/cuda/CUDACachingAllocator.cpp`` (``recordHistory``: turning it off empties the history).
"""

import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal

from isal import igzip

from profkit.capture import console, current, files
from profkit.capture.memory.cuda.driver_bytes import NO_LIMITS, device_bytes
from profkit.errors import CaptureError
from profkit.model.device_bytes import SNAPSHOT_KEY

if TYPE_CHECKING:
    from typing_extensions import Self

SUFFIX: Final = ".snapshot.pickle.gz"
MAX_ENTRIES: Final = 100_000
"""Entries that are kept a device, the latest ones: some steps of a large model. An allocation is
three of them (taken, given back, free again), and each holds a stack: about 100 MB on the host."""
PROTOCOL: Final = 4
"""Of the pickle: the newest that every Python since 3.4 reads."""
_GZIP_LEVEL: Final = 1

StacksOf = Literal["all", "alloc"]

_owner: "HistoryRecording | None" = None
_without_cuda: ModuleType | None = None
"""A torch that is known to be built without CUDA; None too is no torch that has it."""


def snapshot_beside(trace: str | Path) -> Path:
    """Where the snapshot goes that belongs to a trace: the same name with another ending.

    Args:
        trace: The trace's path.
    """
    path = Path(trace)
    return path.with_name(path.name.removesuffix(files.SUFFIX) + SUFFIX)


class HistoryRecording:
    """A history that is recorded while a block runs.

    Where the program has not started CUDA yet it waits until it does, since starting CUDA would
    keep the program from forking. Without CUDA, within another recording, and under ``PROFKIT=0``
    it records nothing. It never raises: what goes wrong becomes one warning.

    Args:
        max_entries: Entries to keep a device.
        started: Called once the history is on, whoever keeps it; it must not raise.
        stacks_of: Of what to keep stacks. Each takes the program about 2 µs: ``alloc`` keeps those
            of allocations, ``all`` also those of what is freed.
    """

    def __init__(
        self,
        max_entries: int = MAX_ENTRIES,
        started: Callable[[], None] | None = None,
        stacks_of: StacksOf = "all",
    ) -> None:
        self._max_entries = max_entries
        self._stacks_of = stacks_of
        self._started: tuple[Callable[[], None], ...] = () if started is None else (started,)
        self._is_on = False

    def __enter__(self) -> "Self":
        global _owner  # noqa: PLW0603  (the allocator has one history a process)
        torch = _cuda_torch()
        if torch is None or not current.is_on:
            return self
        if _owner is not None:
            _owner.then(self._started)
            return self
        _owner = self
        if torch.cuda.is_initialized():
            self._with_cuda()
        else:
            torch.cuda._lazy_call(self._with_cuda)  # noqa: SLF001  (torch has no public way)
        return self

    def __exit__(self, _kind: object, _error: object, _traceback: object) -> None:
        global _owner  # noqa: PLW0603
        if _owner is self:
            _owner = None
            self._turn_off()

    def then(self, started: Iterable[Callable[[], None]]) -> None:
        """Call these too once the history is on, or at once if it is.

        Args:
            started: Functions that must not raise.
        """
        if is_kept():
            for each in started:
                each()
        else:
            self._started = (*self._started, *started)

    def clear(self) -> None:
        """Forget what was recorded so far, as between two windows."""
        if self._is_on:
            self._turn_off()
            torch = _cuda_torch()
            if torch is not None:
                self._turn_on(torch)

    def _with_cuda(self) -> None:
        """Begin, now that the program uses CUDA; torch may call this after the block's end."""
        torch = _cuda_torch()
        if _owner is not self or torch is None:
            return
        if not is_kept():
            self._turn_on(torch)
        if is_kept():
            for each in self._started:
                each()

    def _turn_on(self, torch: Any) -> None:  # noqa: ANN401  (the module)
        try:
            torch.cuda.memory._record_memory_history(  # noqa: SLF001  (torch has no public way)
                "all",
                context=self._stacks_of,
                stacks="python",
                max_entries=self._max_entries,
            )
            self._is_on = True
        except Exception as error:  # noqa: BLE001  (the program goes on without a history)
            console.warn("The history of CUDA's memory is not recorded.", error)

    def _turn_off(self) -> None:
        torch, was_on = _cuda_torch(), self._is_on
        self._is_on = False
        if torch is not None and was_on and is_kept():
            with suppress(Exception):
                torch.cuda.memory._record_memory_history(None)  # noqa: SLF001


def recording(
    max_entries: int = MAX_ENTRIES, started: Callable[[], None] | None = None
) -> HistoryRecording:
    """Keep the history while a block runs.

    Args:
        max_entries: Entries to keep a device; older ones are lost.
        started: Called once the history is on, which is when the program starts CUDA.
    """
    return HistoryRecording(max_entries, started)


def is_possible() -> bool:
    """Whether the program has imported a torch that is built for CUDA or ROCm."""
    return _cuda_torch() is not None


def is_kept() -> bool:
    """Whether the allocator keeps a history now, whoever asked for it."""
    torch = _cuda_torch()
    with suppress(Exception):
        return torch is not None and bool(torch._C._cuda_isHistoryEnabled())  # noqa: SLF001
    return False


def dump(target: Path, limits: Mapping[int, int] = NO_LIMITS) -> Path:
    """Write a snapshot with its history, and whose the devices' memory is.

    It appears whole or not at all.

    Args:
        target: The file to be, ending in :data:`SUFFIX`.
        limits: What this process may have of a device, in bytes, where it is known.

    Returns:
        ``target``.

    Raises:
        CaptureError: There is no history, so a snapshot would not tell who allocated what.
        OSError: It cannot be written; nothing is left behind then.
    """
    torch = _cuda_torch()
    if torch is None or not torch.cuda.is_initialized():
        raise CaptureError("There is no CUDA memory to write down: the program has not used any.")
    if not is_kept():
        raise CaptureError(
            "The allocator keeps no history, so a snapshot would not tell who allocated what.",
            "Record within `with profkit.memory()`, or with profkit run.",
        )
    snapshot = torch.cuda.memory._snapshot()  # noqa: SLF001  (torch has no public way)
    if not any(_did_something(each) for each in snapshot.get("device_traces", ())):
        raise CaptureError(
            "The history is empty: no CUDA memory was allocated or freed while it was recorded.",
        )
    snapshot[SNAPSHOT_KEY] = {"devices": [asdict(each) for each in device_bytes(limits)]}
    with files.atomic_path(target) as partial, igzip.open(partial, "wb", _GZIP_LEVEL) as sink:
        pickle.dump(snapshot, sink, protocol=PROTOCOL)
    return target


def _did_something(entries: list[dict[str, Any]]) -> bool:
    """Whether the allocator did more than being asked for snapshots, which it keeps too."""
    return any(entry.get("action") != "snapshot" for entry in entries)


def _cuda_torch() -> Any:  # noqa: ANN401  (the module, or None)
    """The torch that the program has imported, if it is built for CUDA or ROCm."""
    global _without_cuda  # noqa: PLW0603  (asking torch each time costs microseconds)
    torch = sys.modules.get("torch")
    if torch is _without_cuda:
        return None
    extension = getattr(torch, "_C", None)
    if hasattr(extension, "_cuda_record_memory_history"):
        return torch
    if hasattr(torch, "cuda"):  # its import is through
        _without_cuda = torch
    return None
