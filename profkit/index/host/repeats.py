"""Where a sequence repeats a part of itself, such as the operators of a loop."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from profkit.dataclass import dataclass
from profkit.model.events import Int32s, Int64s

_MIN_PERIOD: Final = 2


@dataclass(frozen=True)
class Repeat:
    """A part of a sequence that repeats.

    Attributes:
        start: The first place.
        period: How many places repeat.
        n: How often they occur in a row.
    """

    start: int
    period: int
    n: int

    @property
    def end(self) -> int:
        """Return the place after the last repetition."""
        return self.start + self.period * self.n


def find_repeats(sequence: Int32s | Int64s, min_times: int, max_period: int) -> Iterator[Repeat]:
    """Yield the parts of a sequence that repeat in a row, those with short periods first.

    A part within another one is left out, as is a single value in a row.

    Args:
        sequence: Shape ``(n,)``.
        min_times: The least number of repetitions.
        max_period: The most places that repeat.
    """
    is_free = np.ones(len(sequence), dtype=np.bool_)
    for period in range(_MIN_PERIOD, min(max_period, len(sequence) // max(1, min_times)) + 1):
        is_same = (sequence[:-period] == sequence[period:]) & is_free[:-period] & is_free[period:]
        edges = np.flatnonzero(np.diff(np.concatenate(([0], is_same.view(np.int8), [0]))))
        for start, end in edges.reshape(-1, 2).tolist():
            n_times = (end - start + period) // period
            if n_times < min_times or (sequence[start:end] == sequence[start]).all():
                continue
            is_free[start : start + n_times * period] = False
            yield Repeat(start, period, n_times)
