"""Holds back garbage collections, which would run finalizers of the program in a thread of ours."""

import _thread
import gc
import os
from collections.abc import Callable
from typing import Final

_NEVER: Final = (1 << 31) - 1
"""A threshold of the garbage collector that is never reached. No program sets this one."""


class _Threshold:
    """The program's threshold of the youngest generation, while some threads hold it back."""

    def __init__(self) -> None:
        self._threads: set[int] = set()
        self._program = 0

    def hold(self, action: Callable[[], None]) -> None:
        """Do something in which no garbage collection begins.

        By a threshold, as the program may well ask whether its collector is on, or turn it off,
        while this thread waits for its turn: a switch that is put back would undo that. Several
        threads may do this at once, in any order.
        """
        thread, threshold = _thread.get_ident(), gc.get_threshold()[0]
        self._threads.add(thread)
        if threshold not in (0, _NEVER):
            self._program = threshold
            gc.set_threshold(_NEVER)
        try:
            action()
        finally:
            self._threads.discard(thread)
            if not self._threads:
                self._restore()

    def forget(self) -> None:
        """Let collections begin again in a forked child, in which no other thread goes on."""
        self._threads.clear()
        self._restore()

    def _restore(self) -> None:
        # The program may have set another threshold meanwhile, and keeps that.
        if gc.get_threshold()[0] == _NEVER:
            gc.set_threshold(self._program)


_threshold: Final = _Threshold()
without_collection: Final = _threshold.hold

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threshold.forget)
