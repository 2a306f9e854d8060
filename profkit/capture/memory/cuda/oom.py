"""When CUDA's memory runs out: one snapshot a process, and the error goes its way untouched.

torch calls an observer before it raises ``torch.OutOfMemoryError``. It cannot be taken back, and
what it raises takes the error's place, so ours is attached once, raises nothing and does nothing
while nobody watches.

Source: ``torch/csrc/cuda/Module.cpp`` (``THCPModule_attachOutOfMemoryObserver``),
``c10/cuda/CUDACachingAllocator.cpp`` (``malloc``: the allocator's lock is not held meanwhile);
pytorch #102796 (an observer attached before the history is on brings the process down).
"""

import os
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from profkit.capture import console, environment, files
from profkit.capture.memory.cuda import history

if TYPE_CHECKING:
    from typing_extensions import Self

_SAID: Final = "CUDA's memory ran out, and no snapshot of it was written."
_attached: set[int] = set()
"""Processes that have the observer: at most this one, and the one that it was forked from."""
_watch: "Watch | None" = None


@dataclass
class _Open:
    """What a watch needs while its block runs, where there is CUDA."""

    folder: Path
    history: history.HistoryRecording
    first: threading.Lock = field(default_factory=threading.Lock)
    """Taken by the thread that writes the snapshot, and never given back."""


class Watch:
    """Watches for CUDA's memory to run out while a block runs.

    Args:
        folder: As in :func:`profkit.capture.files.trace_folder`.
        name: The capture's name.
        quiet: Say nothing but warnings.
        stacks_of: As in :class:`~profkit.capture.memory.cuda.history.HistoryRecording`.

    Attributes:
        path: The snapshot that was written, or None.
        n_seen: How often memory ran out; a program may catch the error and go on.
    """

    path: str | None = None
    n_seen: int = 0

    def __init__(
        self,
        folder: str | None,
        name: str,
        *,
        quiet: bool = False,
        stacks_of: history.StacksOf = "all",
    ) -> None:
        self._asked = (folder, name, stacks_of)
        self._quiet = quiet
        self._open: _Open | None = None

    def __enter__(self) -> "Self":
        if history.is_possible():
            folder, name, stacks_of = self._asked
            recorder = history.HistoryRecording(started=self._begin, stacks_of=stacks_of)
            self._open = _Open(_absolute(files.trace_folder(folder, name)), recorder)
            recorder.__enter__()
        return self

    def __exit__(self, _kind: object, _error: object, _traceback: object) -> None:
        global _watch  # noqa: PLW0603  (torch has one list of observers a process)
        opened, self._open = self._open, None
        if opened is not None:
            opened.history.__exit__(None, None, None)
        if _watch is self:
            _watch = None

    def _begin(self) -> None:
        """The history is on; this may come after the block's end, if another one keeps it."""
        global _watch  # noqa: PLW0603
        if _watch is None and self._open is not None:
            _watch = self
            _attach()

    def clear(self) -> None:
        """Forget the history so far, as between two windows."""
        if self._open is not None:
            self._open.history.clear()

    def ran_out(self, device: int, limit_bytes: int) -> None:
        """Write the first snapshot of this process; later ones would be of what came after.

        Args:
            device: Ordinal of the device.
            limit_bytes: The device's memory, or what the process may have of it.
        """
        self.n_seen += 1
        if self._open is None or not self._open.first.acquire(blocking=False):
            return
        rank, _ = environment.ranks()
        trace = files.trace_file(self._open.folder, rank)
        target = history.snapshot_beside(trace)
        self.path = str(history.dump(target, {device: limit_bytes}))
        console.note(
            f"CUDA's memory ran out; next: profkit analyze {self.path}",
            quiet=self._quiet,
        )


def watch(
    folder: str | None,
    name: str,
    *,
    quiet: bool = False,
    stacks_of: history.StacksOf = "all",
) -> Watch:
    """Keep the allocator's history, and write a snapshot when memory runs out.

    Does nothing without CUDA, and waits where the program has not started it.

    Args:
        folder: The folder for captures, or None for ``$PROFKIT_DIR``, else ``traces``.
        name: The capture's name.
        quiet: Say nothing but warnings.
        stacks_of: Of what to keep stacks: ``all``, or for less ``alloc``.
    """
    return Watch(folder, name, quiet=quiet, stacks_of=stacks_of)


def _attach() -> None:
    """Attach the observer, once a process, to an allocator that keeps its history."""
    torch: Any = sys.modules["torch"]
    if os.getpid() in _attached:
        return
    try:
        torch._C._cuda_attach_out_of_memory_observer(_observe)  # noqa: SLF001  (no public way)
        _attached.add(os.getpid())
    except Exception as error:  # noqa: BLE001  (the program goes on unwatched)
        console.warn("No snapshot will be written when CUDA's memory runs out.", error)


def _observe(device: int, _asked_bytes: int, limit_bytes: int, _free_bytes: int) -> None:
    """What torch calls. Whatever is raised in here would take the place of its own error."""
    try:
        watch_ = _watch
        if watch_ is not None:
            watch_.ran_out(device, limit_bytes)
    except BaseException as error:  # noqa: BLE001  (the error of the program wins, even over Ctrl-C)
        console.warn(_SAID, error)


def _absolute(folder: Path) -> Path:
    """The folder as it is meant now, wherever the program goes later."""
    try:
        return folder.absolute()
    except OSError:
        return folder
