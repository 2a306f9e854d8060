"""Counts the Python calls of a thread, at a fiftieth of what torch's tracer takes to record them.

CPython's own profiler counts in C: 0.1 to 0.3 µs per call. It keeps a number per function, and
nothing of the program but code objects, until it is freed.

Source: ``Modules/_lsprof.c`` in CPython. It is a profile function of one thread up to Python 3.11,
and a tool of ``sys.monitoring`` for all threads from 3.12 on, of which there can be one.
"""

import contextlib
import sys
from typing import TYPE_CHECKING

from profkit.capture.process import program_profilers

if TYPE_CHECKING:
    import _lsprof


class CallCounter:
    """Counts calls between :meth:`start` and :meth:`stop`, which one thread calls.

    It makes way for a profile function of the program, which excludes this one.
    """

    def __init__(self) -> None:
        self._profiler: _lsprof.Profiler | None = None
        self._watching = contextlib.ExitStack()

    def start(self) -> None:
        """Begin to count, unless the program has a profile function."""
        self.stop()
        # Python may be built without it; ValueError says that another tool is in its place.
        with contextlib.suppress(ImportError, ValueError):
            import _lsprof

            if sys.getprofile() is None:
                self._watching.enter_context(
                    program_profilers.watching_python(self._yield_to_program)
                )
                profiler = _lsprof.Profiler()
                profiler.enable(subcalls=False, builtins=True)
                self._profiler = profiler

    def stop(self) -> int | None:
        """Count no more; returns the number of calls that have ended, or None if it is not known.

        It is not known without a start, nor where the program has set a profile function since.
        """
        profiler, self._profiler = self._profiler, None
        is_on = _is_on(profiler)
        if profiler is not None and is_on:
            profiler.disable()
        self._watching.close()
        if profiler is None or not is_on:
            return None
        return sum(entry.callcount for entry in profiler.getstats())

    def _yield_to_program(self, _name: str) -> None:
        """End before the program sets a profile function, where that would replace this one."""
        if _is_on(self._profiler):
            self.stop()


def _is_on(profiler: object) -> bool:
    """Return whether nothing has taken the place of a profiler, as far as Python would tell."""
    return program_profilers.HAS_MONITORING or sys.getprofile() is profiler
