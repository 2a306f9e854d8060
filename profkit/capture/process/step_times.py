"""Notes when each step of a rank ended, for the comparison of the ranks over the whole run.

All steps are noted, and not only the recorded ones: in three steps some rank is always the last by
chance. A step takes two readings of clocks and of one small file of the system.
"""

import time
from array import array
from typing import Final

from profkit.capture.process.cpu_time import main_delayed_ns

_N_STEPS: Final = 2048
"""Steps that are kept, the latest ones: a dump of the FlightRecorder has as many collectives."""


class StepLog:
    """The times of the latest steps of the main thread."""

    def __init__(self) -> None:
        self._columns = {name: array("q") for name in ("ends_ns", "own_ns", "delayed_ns", "cpu_ns")}
        self._first = 0
        self._ended_ns = time.time_ns()
        self._own_ns = self._delayed_ns = self._cpu_ns = 0
        self._begin_step(0)

    def note(self) -> None:
        """Note a step that has ended; the next one begins at once."""
        self.end_step()
        self._own_ns = 0

    def end_step(self) -> None:
        """Note a step that has ended. What follows until :meth:`begin_step` is profkit's own."""
        self._ended_ns = time.time_ns()
        delayed_ns, cpu_ns = main_delayed_ns(), time.thread_time_ns()

        row = (
            self._ended_ns,
            self._own_ns,
            delayed_ns - self._delayed_ns,
            cpu_ns - self._cpu_ns,
        )
        for column, value in zip(self._columns.values(), row, strict=True):
            # The system's clock may be set back.
            column.append(max(0, value))
        self._delayed_ns, self._cpu_ns = delayed_ns, cpu_ns

        # Half of them at once, so that dropping takes nothing per step.
        if len(self._columns["ends_ns"]) >= 2 * _N_STEPS:
            self._first += _N_STEPS
            for column in self._columns.values():
                del column[:_N_STEPS]

    def begin_step(self) -> None:
        """Note that profkit is done, and the next step of the program begins."""
        self._begin_step(time.time_ns() - self._ended_ns)

    def _begin_step(self, own_ns: int) -> None:
        """Begin a step after a stop of so many nanoseconds, of which no processor time counts."""
        self._own_ns = own_ns
        self._delayed_ns, self._cpu_ns = main_delayed_ns(), time.thread_time_ns()

    def clear(self) -> None:
        """Forget the steps so far: they were none."""
        self._first = 0
        for column in self._columns.values():
            del column[:]

    def to_lists(self) -> dict[str, list[int]]:
        """Return the times by name, and under ``first`` how many steps ended before them."""
        return {
            "first": [self._first],
            **{name: column.tolist() for name, column in self._columns.items()},
        }
