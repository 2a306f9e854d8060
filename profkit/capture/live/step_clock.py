"""Counts the steps of a running program and remembers when the latest ones ended."""

import itertools
import statistics
import time
from array import array
from collections.abc import Callable
from typing import Final

from profkit.capture.live.endpoint import Message

_N_TIMES: Final = 512
"""Steps whose times are remembered; a power of two, so that a place is a mask."""


class StepClock:
    """The steps of a program.

    Attributes:
        n_steps: Steps that have ended.
        waited_ns: How long the program has waited for its DataLoaders so far; set from outside.
        on_step: Called with that number at the end of each step, or None.
    """

    def __init__(self) -> None:
        self.n_steps = 0
        self.waited_ns = 0
        self.on_step: Callable[[int], None] | None = None
        self._ends_ns = array("q", bytes(8 * _N_TIMES))
        self._waits_ns = array("q", bytes(8 * _N_TIMES))

    def step(self) -> None:
        """Count a step that has ended, and note the time."""
        n_steps = self.n_steps + 1
        place = n_steps & (_N_TIMES - 1)
        self._ends_ns[place] = time.perf_counter_ns()
        self._waits_ns[place] = self.waited_ns
        self.n_steps = n_steps
        if self.on_step is not None:
            self.on_step(n_steps)

    def skip(self) -> None:
        """Count a step that has ended while a profiler of the program records it."""
        self.step()

    def discard(self) -> None:
        """Count from zero: the steps so far were batches, of which a step has several."""
        self.n_steps = 0

    def longest_s(self, n_steps: int) -> float:
        """Return how many seconds so many steps take at most, by those that are remembered.

        The longest of them is one; all others are of median length.
        """
        ends_ns = self.since(0)["ends_ns"]
        steps_ns = [b - a for a, b in itertools.pairwise(ends_ns)]
        if not steps_ns:
            return 0.0
        return (max(steps_ns) + (n_steps - 1) * statistics.median(steps_ns)) / 1e9

    def since(self, n_before: int) -> Message:
        """Return the ends of the steps after a number of them, as far as they are remembered.

        Returns:
            ``ends_ns``, which begins with the end of that step, and ``waits_ns``, how long the
            program had waited for data by then.
        """
        n_steps = self.n_steps

        # The oldest place is left out: the program's thread may overwrite it meanwhile.
        first = max(n_before, n_steps - _N_TIMES + 2, 1)
        places = [number & (_N_TIMES - 1) for number in range(first, n_steps + 1)]

        return {
            "n_steps": n_steps,
            "ends_ns": [self._ends_ns[place] for place in places],
            "waits_ns": [self._waits_ns[place] for place in places],
        }
