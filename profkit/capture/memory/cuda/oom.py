"""Writes one snapshot per process when CUDA memory runs out, and leaves the error untouched.

torch calls an observer before it raises ``torch.OutOfMemoryError``. An observer cannot be detached,
and what it raises replaces the error, so profkit's is attached once, raises nothing, and does
nothing while no monitor is open.

Source: ``torch/csrc/cuda/Module.cpp`` (``THCPModule_attachOutOfMemoryObserver``),
``c10/cuda/CUDACachingAllocator.cpp`` (``malloc``: the allocator's lock is not held meanwhile);
pytorch #102796 (an observer attached before the history is on crashes the process).
"""

import os
import sys
import threading
from dataclasses import field
from pathlib import Path
from typing import Any, Final, Self

from profkit.capture.memory.cuda import history
from profkit.capture.process import console, files, signals
from profkit.dataclass import dataclass

_NO_SNAPSHOT: Final = "CUDA ran out of memory, and no snapshot was written."
_attached: set[int] = set()
"""Processes with the observer: at most this one, and the one that it was forked from."""


class _ProcessState:
    """What observes this process's allocator; torch has one list of observers.

    Attributes:
        active: The monitor that writes a snapshot, or None.
    """

    active: "OomMonitor | None" = None


_state: Final = _ProcessState()


@dataclass
class _Open:
    """The state of a monitor while its block runs with CUDA."""

    folder: Path
    history: history.HistoryRecording
    first: threading.Lock = field(default_factory=threading.Lock)
    """Acquired by the thread that writes the snapshot, and never released."""


class OomMonitor:
    """Records the allocator's history, and writes a snapshot if CUDA memory runs out.

    Without CUDA it does nothing; if the program has not initialized CUDA it waits until it does.

    Attributes:
        path: The snapshot that was written, or None.
    """

    path: str | None = None

    def __init__(
        self,
        folder: str | None,
        name: str,
        *,
        quiet: bool = False,
    ) -> None:
        self._folder = folder
        self._name = name
        self._quiet = quiet
        self._open: _Open | None = None

    def __enter__(self) -> Self:
        if history.has_cuda():
            recording = history.HistoryRecording(self._begin, history.LATEST)
            folder = files.trace_folder(self._folder, self._name)
            self._open = _Open(_absolute(folder), recording)
            recording.__enter__()
        return self

    def __exit__(self, _kind: object, _error: object, _traceback: object) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened.history.__exit__(None, None, None)
        if _state.active is self:
            _state.active = None

    def _begin(self) -> None:
        """Begin once the history is on; this may be after the block's end."""
        if _state.active is None and self._open is not None:
            _state.active = self
            _attach()

    def out_of_memory(self, device: int, limit_bytes: int) -> None:
        """Write the snapshot of the first error; later ones may be consequences of it.

        Args:
            limit_bytes: The device's memory, or the part that the process may use.
        """
        if self._open is None or not self._open.first.acquire(blocking=False):
            return

        target = files.beside(files.trace_file(self._open.folder), history.SUFFIX)
        self.path = str(history.dump(target, {device: limit_bytes}))
        console.note(
            f"CUDA ran out of memory; next: profkit analyze {self.path}", quiet=self._quiet
        )


def _attach() -> None:
    """Attach the observer, once per process, to an allocator that records its history."""
    torch: Any = sys.modules["torch"]
    if os.getpid() in _attached:
        return

    # A handler of the program runs after the block, where what it raises is not caught.
    with signals.held():
        try:
            torch._C._cuda_attach_out_of_memory_observer(_observe)  # noqa: SLF001  (no public way)
            _attached.add(os.getpid())
        except Exception as error:  # noqa: BLE001  (the program goes on without it)
            console.warn("no snapshot will be written when CUDA runs out of memory.", error)


def _observe(device: int, _requested_bytes: int, limit_bytes: int, _free_bytes: int) -> None:
    """Write a snapshot; called by torch, whose own error an exception from here would replace."""
    try:
        monitor = _state.active
        if monitor is not None:
            monitor.out_of_memory(device, limit_bytes)
    except BaseException as error:  # noqa: BLE001  (the program's error wins, even over Ctrl-C)
        console.warn(_NO_SNAPSHOT, error)


def _absolute(folder: Path) -> Path:
    """Return the folder as an absolute path, as the program may change its working directory."""
    try:
        return folder.absolute()
    except OSError:
        return folder
