"""How fast this machine's processor is, beside the one on which profkit's costs were measured.

What profkit may cost is some seconds at most. A processor that takes twice as long for everything
takes twice as long for the program too, so that these seconds are of the measured processor.
"""

import functools
import time
from typing import Final

_N_ROUNDS: Final = 20_000
"""Rounds of the measured loop: long beside the resolution of the clock, which is some µs."""
_ROUNDS_S: Final = 0.66e-3
"""What they take on the processor of the measurements, with CPython 3.11."""
_N_TIMES: Final = 5
"""The fastest of these counts: caches are cold at first, and another program may interfere."""
_MOST: Final = 4.0
"""A processor that seems slower than this is busy with something else."""


@functools.cache
def slowness() -> float:
    """Return how many times as long this processor takes as the measured one, from 1 to 4.

    Measured once per process, in 3 to 15 ms: a loop of Python, as nearly all that profkit does
    within a program is Python's and of one thread.
    """
    return min(max(1.0, min(_time_s() for _ in range(_N_TIMES)) / _ROUNDS_S), _MOST)


def _time_s() -> float:
    began_s = time.thread_time()
    total = 0
    for number in range(_N_ROUNDS):
        total += number
    return time.thread_time() - began_s
