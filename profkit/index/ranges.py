"""Ranges of indices, and runs of equal keys."""

from typing import Any

import numpy as np
import numpy.typing as npt

from profkit.model.events import Rows


def find_runs(keys: npt.NDArray[np.integer[Any]]) -> tuple[Rows, Rows]:
    """Find where the runs of equal keys, all 0 or more, begin, and how long each is."""
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    return first, np.diff(np.append(first, len(keys)))


def expand_ranges(first: Rows, sizes: Rows) -> Rows:
    """Return the indices of ranges, one range after the other.

    Args:
        first: The first index of each range. Shape ``(r,)``.
        sizes: How many indices each has. Shape ``(r,)``.
    """
    begins = np.cumsum(sizes) - sizes
    return np.asarray(np.arange(int(sizes.sum())) + np.repeat(first - begins, sizes))
