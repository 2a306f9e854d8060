"""profkit's own use of ``tracemalloc``, of which a process has one, and which the program may use.

The program then finds tracing off, as it would without profkit: from its first call on, profkit's
tracing has ended. A program that has imported functions out of the module is not noticed.

Source: ``Lib/tracemalloc.py`` and ``Modules/_tracemalloc.c`` of Python. Starting has no effect
while tracing is on, so the program's tracing would end with profkit's.
"""

import ctypes
import sys
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any, Final

from profkit.capture.process import program_profilers

_USES: Final = (
    "start", "stop", "is_tracing", "clear_traces", "take_snapshot", "reset_peak",
    "get_traced_memory", "get_traceback_limit", "get_tracemalloc_memory", "get_object_traceback",
)  # fmt: skip
"""Functions of the module that depend on whether tracing is on."""
_WRONG_ADDRESS: Final = (3, 11)
"""In this version ``get_object_traceback`` finds no instance of a class, as it does not count two
pointers before the header. Source: ``_PyType_PreHeaderSize`` in ``_tracemalloc.c`` of 3.12."""
_PRE_HEADER_BYTES: Final = 4 * ctypes.sizeof(ctypes.c_void_p)
_DOMAIN: Final = 0
"""``tracemalloc`` numbers domains of memory: Python's own is 0."""


class OwnTracing:
    """Traces all allocations of the process while it is on.

    Attributes:
        is_on: Whether it is on; false once the program has used ``tracemalloc`` itself.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._lock = threading.RLock()
        self._undo: list[Callable[[], None]] = []

    def begin(self, frames: int) -> bool:
        """Trace with so many frames for each allocation; False if the program traces already."""
        with self._lock:
            if self.is_on or tracemalloc.is_tracing():
                return False
            tracemalloc.start(frames)
            self.is_on = True
            self._undo = program_profilers.watch_functions("tracemalloc", _USES, self._on_use)
            return True

    def end(self) -> None:
        """Stop tracing, if it is on, and forget what was traced."""
        with self._lock:
            if self.is_on:
                self.is_on = False
                while self._undo:
                    self._undo.pop()()
                tracemalloc.stop()

    def own_bytes(self) -> int:
        """Return how many bytes tracing itself takes."""
        with self._lock, program_profilers.own():
            return tracemalloc.get_tracemalloc_memory() if self.is_on else 0

    def statistics(self) -> list[tuple[tracemalloc.Traceback, int]]:
        """Return the bytes that were allocated since and are alive, by traceback; empty if off."""
        with self._lock, program_profilers.own():
            if not self.is_on:
                return []
            statistics = tracemalloc.take_snapshot().statistics("traceback")
            return [(statistic.traceback, statistic.size) for statistic in statistics]

    def traceback_of(self, thing: object) -> tracemalloc.Traceback | None:
        """Return where an object was allocated, in any thread; None if before, or if it is off."""
        with self._lock, program_profilers.own():
            return _traceback_of(thing) if self.is_on else None

    def _on_use(self, _name: str) -> None:
        self.end()


def _traceback_of(thing: object) -> tracemalloc.Traceback | None:
    allocated_at = tracemalloc.get_object_traceback(thing)
    if allocated_at is not None or sys.version_info[:2] != _WRONG_ADDRESS:
        return allocated_at

    # The function in C takes the address of the block, which that of 3.11 computes wrongly.
    get_traceback: Any = ctypes.pythonapi._PyTraceMalloc_GetTraceback  # noqa: SLF001
    get_traceback.restype = ctypes.py_object
    frames = get_traceback(ctypes.c_uint(_DOMAIN), ctypes.c_void_p(id(thing) - _PRE_HEADER_BYTES))
    return None if frames is None else tracemalloc.Traceback(frames)
