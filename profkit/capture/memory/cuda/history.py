"""Records the history of the CUDA caching allocator, and writes it as a memory snapshot.

A history that the program itself records is left alone: it is then written as it is, and neither
cleared nor turned off. If the program turns its own on while this one is, this one ends before, so
that the program finds only what happened since; from then on none is recorded here.

Source: ``torch.cuda.memory._record_memory_history`` and ``_snapshot``, which in torch 2.6 to 2.14
call ``torch._C._cuda_record_memory_history``, or for older arguments the same with ``_legacy``;
``c10/cuda/CUDACachingAllocator.cpp`` (``recordHistory``: turning it off clears the history).
"""

import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple, Self

from isal import igzip

from profkit.capture.memory.cuda.driver_bytes import NO_LIMITS, device_bytes
from profkit.capture.process import console, files, signals
from profkit.capture.process.wrappers import replace_attribute
from profkit.capture.recording import current
from profkit.errors import CaptureError
from profkit.model.device_bytes import SNAPSHOT_KEY

SUFFIX: Final = ".snapshot.pickle.gz"
PROTOCOL: Final = 4
"""Pickle protocol, readable by every Python since 3.4."""
_GZIP_LEVEL: Final = 1
"""The fastest: the program waits while the snapshot is written."""


class Extent(NamedTuple):
    """How much of the allocator's history is recorded.

    A stack takes about 2 µs, in a backward pass more: on an H100, steps of a transformer that are
    bound by the host took 10 % longer with stacks of allocations, and 19 % with those of frees too.

    Attributes:
        max_entries: Entries of the buffer per device, each about one kB of host memory. An
            allocation takes three: allocated, free requested, freed.
        stacks_of: Events with a stack: ``alloc`` for allocations, ``all`` for frees too.
    """

    max_entries: int
    stacks_of: Literal["all", "alloc"]


FULL: Final = Extent(100_000, "all")
"""Some steps of a large model."""
LATEST: Final = Extent(2_000, "alloc")
"""For what is live at the end, which has its stacks anyway; the buffer is full after some steps."""

_SWITCHES: Final = ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy")
"""Functions of ``torch._C`` that turn the history on and off."""


class _ProcessState:
    """What is known of the allocator's history, of which a process has one.

    Attributes:
        owner: What records it, or None.
        is_switched_by_program: Whether the program has turned a history of its own on or off during
            a recording.
        torch_without_cuda: The torch module, once it is known to be built without CUDA: checking
            each time costs microseconds.
    """

    owner: "HistoryRecording | None" = None
    is_switched_by_program: bool = False
    torch_without_cuda: ModuleType | None = None


_state: Final = _ProcessState()


class HistoryRecording:
    """Records the allocator's history while a block runs.

    If the program has not initialized CUDA it waits until it does, since initializing CUDA would
    prevent the program from forking. Without CUDA, inside another recording, and under
    ``PROFKIT=0`` it records nothing. It never raises: an error becomes one warning.

    Args:
        started: Called once the history is on, whoever records it; it must not raise.
        extent: How much of it.
    """

    def __init__(self, started: Callable[[], None] | None = None, extent: Extent = FULL) -> None:
        self._extent = extent
        self._n_before = 0
        self._is_full = False
        self._started: tuple[Callable[[], None], ...] = () if started is None else (started,)
        self._is_on = False
        self._unwatch: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        torch = _cuda_torch()
        if torch is None or not current.state.is_on:
            return self
        if _state.owner is not None:
            _state.owner.record_for(self._started, self._extent)
            return self

        _state.owner = self
        if torch.cuda.is_initialized():
            self._begin()
        else:
            torch.cuda._lazy_call(self._begin)  # noqa: SLF001  (torch has no public way)
        return self

    def __exit__(self, _kind: object, _error: object, _traceback: object) -> None:
        if _state.owner is not self:
            return
        _state.owner = None
        self._end()

    def _leave_switches(self) -> None:
        """Let torch's switches be its own again."""
        while self._unwatch:
            self._unwatch.pop()()

    def _end(self) -> None:
        self._leave_switches()

        # What the program has turned off or on again since is no longer this recording's.
        torch, was_on = _cuda_torch(), self._is_on
        self._is_on = False
        if torch is not None and was_on and is_recording():
            with signals.held(), suppress(Exception):
                torch.cuda.memory._record_memory_history(None)  # noqa: SLF001

    def _stop_before_program(self, extension: Any) -> None:  # noqa: ANN401  (torch._C)
        """End this recording before the program turns a history of its own on."""
        for name in _SWITCHES:
            original = getattr(extension, name, None)
            if original is not None:
                switch = partial(self._switch_for_program, original)
                self._unwatch.append(replace_attribute(extension, name, switch))

    def _switch_for_program(
        self,
        original: Callable[..., Any],
        *args: Any,  # noqa: ANN401  (passed on)
        **kwargs: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        _state.is_switched_by_program = True
        self._end()
        return original(*args, **kwargs)

    def record_for(self, started: Iterable[Callable[[], None]], extent: Extent) -> None:
        """Record for another recording too, which begins within this one.

        Args:
            started: Called once the history is on, or now if it is; they must not raise.
            extent: If it is larger, this one goes on with it, and the entries so far stay.
        """
        torch = _cuda_torch()
        if extent > self._extent:
            self._extent = extent
            if self._is_on and torch is not None:
                self._leave_switches()
                self._turn_on(torch)

        if is_recording():
            for function in started:
                function()
        else:
            self._started = (*self._started, *started)

    @property
    def is_filling(self) -> bool:
        """Tell whether the buffer takes more host memory with each allocation of the program."""
        torch = _cuda_torch()
        if torch is None or not self._is_on:
            return False
        if not self._is_full:
            n_events = _count_events(torch)
            # The program may have reset the counters.
            self._n_before = min(self._n_before, n_events)
            self._is_full = n_events - self._n_before >= self._extent.max_entries
        return not self._is_full

    def _begin(self) -> None:
        """Begin once CUDA is initialized; torch may call this after the block's end."""
        torch = _cuda_torch()
        if _state.owner is not self or torch is None:
            return

        if not is_recording() and not _state.is_switched_by_program:
            # A handler of the program runs after the block, where what it raises is not caught.
            with signals.held():
                self._turn_on(torch)

        if is_recording():
            for function in self._started:
                function()

    def _turn_on(self, torch: Any) -> None:  # noqa: ANN401  (the module)
        """Turn the allocator's history on, or warn that it is not recorded."""
        try:
            self._n_before, self._is_full = _count_events(torch), False
            torch.cuda.memory._record_memory_history(  # noqa: SLF001  (torch has no public way)
                "all",
                context=self._extent.stacks_of,
                stacks="python",
                max_entries=self._extent.max_entries,
            )
            self._is_on = True
            self._stop_before_program(torch._C)  # noqa: SLF001
        except Exception as error:  # noqa: BLE001  (the program goes on without a history)
            console.warn("the CUDA memory history is not recorded.", error)


def has_cuda() -> bool:
    """Tell whether the program has imported a torch that is built for CUDA or ROCm."""
    return _cuda_torch() is not None


def is_recording() -> bool:
    """Tell whether the allocator records its history now, whoever turned it on."""
    torch = _cuda_torch()
    with signals.held(), suppress(Exception):
        return torch is not None and bool(torch._C._cuda_isHistoryEnabled())  # noqa: SLF001
    return False


def is_filling() -> bool:
    """Tell whether a history of profkit's takes more host memory with each allocation."""
    return _state.owner is not None and _state.owner.is_filling


def dump(target: Path, limits: Mapping[int, int] = NO_LIMITS) -> Path:
    """Write a snapshot with its history, and how the devices' memory is divided.

    The file is written completely or not at all.

    Args:
        target: The file, ending in :data:`SUFFIX`, which is returned.
        limits: Bytes that this process may use of a device, where known.

    Raises:
        CaptureError: There is no history, so a snapshot would have no allocation sites.
        OSError: The file cannot be written.
    """
    torch = _cuda_torch()
    if torch is None or not torch.cuda.is_initialized():
        raise CaptureError("No snapshot to write: the program has not used CUDA memory.")
    if not is_recording():
        raise CaptureError(
            "The CUDA memory history is not recorded, so a snapshot has no allocation sites.",
            "Record within `with profkit.memory()`, or with profkit run.",
        )

    snapshot = torch.cuda.memory._snapshot()  # noqa: SLF001  (torch has no public way)

    # The allocator also records each snapshot that is taken.
    entries = (entry for trace in snapshot.get("device_traces", ()) for entry in trace)
    if all(entry.get("action") == "snapshot" for entry in entries):
        raise CaptureError(
            "The history is empty: no CUDA memory was allocated or freed while it was recorded."
        )

    snapshot[SNAPSHOT_KEY] = {"devices": [asdict(device) for device in device_bytes(limits)]}
    with files.atomic_path(target) as partial, igzip.open(partial, "wb", _GZIP_LEVEL) as sink:
        pickle.dump(snapshot, sink, protocol=PROTOCOL)
    return target


def _count_events(torch: Any) -> int:  # noqa: ANN401  (the module)
    """Count what the history would have of the current device, if it had recorded from the start.

    An allocation is one entry, a free two.
    """
    stats = torch.cuda.memory_stats()
    n_freed = 2 * int(stats.get("allocation.all.freed", 0))
    return int(stats.get("allocation.all.allocated", 0)) + n_freed


def _cuda_torch() -> Any:  # noqa: ANN401  (the module, or None)
    """Return the torch that the program has imported, if it is built for CUDA or ROCm."""
    torch = sys.modules.get("torch")
    if torch is _state.torch_without_cuda:
        return None
    extension = getattr(torch, "_C", None)
    if hasattr(extension, "_cuda_record_memory_history"):
        return torch
    if hasattr(torch, "cuda"):  # its import is complete
        _state.torch_without_cuda = torch
    return None
