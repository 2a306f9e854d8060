"""Keys numbered from 0, in their order."""

from typing import Final

import numpy as np

from profkit.model.events import Int64s

_FEW: Final = 1 << 16
_DENSE: Final = 4


def numbered(keys: Int64s) -> tuple[Int64s, Int64s]:
    """The different keys, ascending, and for each key its place among them.

    As ``np.unique`` with ``return_inverse`` does; where keys lie close to one another by a table of
    all that there could be, which is quicker than to sort them.

    Args:
        keys: Numbers of 0 or more. Shape ``(n,)``.
    """
    most = int(keys.max(initial=0))
    if most > _DENSE * len(keys) + _FEW:
        found, place = np.unique(keys, return_inverse=True)
        return found, place.astype(np.int64)
    there = np.zeros(most + 1, dtype=np.bool_)
    there[keys] = True
    return np.flatnonzero(there).astype(np.int64), (np.cumsum(there) - 1)[keys]
