"""How much each of some groups of blocks held at each of some moments."""

from itertools import pairwise

import numpy as np

from profkit.model.events import Int64s, Rows


def bytes_over_time(
    group: Rows, n_bytes: Int64s, begin: Rows, end: Rows, moments: Rows, n_groups: int
) -> Int64s:
    """The bytes of each group's blocks that stand at each moment. Shape ``(n_groups, k)``.

    Args:
        group: The group of each block. Shape ``(b,)``.
        n_bytes: Its length.
        begin: The first place at which it stands.
        end: The first place after it at which it does not.
        moments: Places, ascending. Shape ``(k,)``.
        n_groups: How many groups there are.
    """
    width = len(moments) + 1
    change = np.zeros(n_groups * width, dtype=np.int64)
    np.add.at(change, group * width + np.searchsorted(moments, begin), n_bytes)
    np.subtract.at(change, group * width + np.searchsorted(moments, end), n_bytes)
    return np.asarray(np.cumsum(change.reshape(n_groups, width), axis=1)[:, :-1])


def telling_moments(level: Int64s, n: int) -> Rows:
    """Places of a level that keep its look: the highest of each of ``n`` stretches, and both ends.

    Args:
        level: The level at each place. Shape ``(p,)``, not empty.
        n: How many stretches.

    Returns:
        Places, ascending, each once. Shape ``(k,)``, ``k`` at most ``n + 2``.
    """
    last = len(level) - 1
    if len(level) <= n:
        return np.arange(len(level))
    bounds = np.linspace(0, len(level), n + 1).astype(np.intp)
    inside = [a + int(level[a:b].argmax()) for a, b in pairwise(bounds.tolist())]
    return np.unique(np.array([0, *inside, last], dtype=np.intp))
