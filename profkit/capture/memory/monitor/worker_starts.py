"""Times how long a program waits for DataLoader workers to start and to end, over the whole run.

Without ``persistent_workers=True`` each iterator of a loader starts its workers, and ends them
after its last batch: a fork or a new process each, in between the steps, where no recording of a
few steps looks. What the first iterator of a line takes is part of any run, and is left out.

Source: ``_MultiProcessingDataLoaderIter`` in ``torch/utils/data/dataloader.py``.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from profkit.capture.process import cpu_time
from profkit.capture.process.wrappers import replace_attribute
from profkit.capture.source.user_code import Place, UserCode
from profkit.dataclass import dataclass
from profkit.model.live_memory import WorkerRestarts
from profkit.model.location import Frame

_MAX_ITERATORS: Final = 1_000
"""Iterators that are known by the line which made them; of more, the oldest is forgotten."""


@dataclass
class _LineStarts:
    """The iterators that a line of the program has made.

    Attributes:
        restart_ns: Time of all starts but the first, and of all ends.
    """

    n_starts: int = 0
    restart_ns: int = 0


class WorkerStarts:
    """Times the starts and ends of workers in this process, from :meth:`begin` on."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._user_code: UserCode | None = None
        self._lines: dict[Place, _LineStarts] = {}
        self._line_of: dict[int, _LineStarts] = {}

    def begin(self, iterator_class: Any) -> Callable[[], None]:  # noqa: ANN401  (torch's own)
        """Time the iterators of a class from now on; returns what ends that.

        Args:
            iterator_class: Torch's iterator over a loader with workers.
        """
        start, end = iterator_class.__init__, iterator_class._shutdown_workers  # noqa: SLF001

        def timed_start(iterator: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            began_ns = _used_ns()
            result = start(iterator, *args, **kwargs)
            with contextlib.suppress(Exception):
                self._add_start(iterator, _used_ns() - began_ns, sys._getframe(1))  # noqa: SLF001
            return result

        def timed_end(iterator: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            began_ns = _used_ns()
            result = end(iterator, *args, **kwargs)
            with contextlib.suppress(Exception):
                self._add_end(iterator, _used_ns() - began_ns)
            return result

        restore_start = replace_attribute(iterator_class, "__init__", timed_start)
        restore_end = replace_attribute(iterator_class, "_shutdown_workers", timed_end)

        def restore() -> None:
            restore_start()
            restore_end()

        return restore

    def find_restarts(self) -> WorkerRestarts | None:
        """Find the line whose loader takes longest for new workers, or None."""
        lines = [(place, line) for place, line in self._lines.items() if line.n_starts > 1]
        if not lines or os.getpid() != self._pid:
            return None
        place, line = max(lines, key=lambda entry: entry[1].restart_ns)
        return WorkerRestarts(Frame(*place), line.n_starts - 1, line.restart_ns)

    def _add_start(self, iterator: object, elapsed_ns: int, caller: FrameType) -> None:
        """Add the start of an iterator's workers."""
        if self._user_code is None:
            self._user_code = UserCode()  # which imports torch
        place = self._user_code.innermost(caller)
        if place is None:
            return
        line = self._lines.setdefault(place, _LineStarts())
        line.n_starts += 1
        if line.n_starts > 1:
            line.restart_ns += elapsed_ns

        if len(self._line_of) >= _MAX_ITERATORS:
            del self._line_of[next(iter(self._line_of))]
        self._line_of[id(iterator)] = line

    def _add_end(self, iterator: object, elapsed_ns: int) -> None:
        """Add the end of an iterator's workers: its first call, as others find them ended."""
        line = self._line_of.pop(id(iterator), None)
        if line is not None:
            line.restart_ns += elapsed_ns


def _used_ns() -> int:
    """Return the time without that for which the main thread had no core, as of no fixed point.

    Other programs take the cores meanwhile, which is in the time of no step either.
    """
    return time.perf_counter_ns() - cpu_time.main_delayed_ns()
