"""Finds objects that are unreachable and not yet garbage-collected.

They are found as the collector finds them, by subtracting from each object's reference count the
references from other objects, but without collecting: no finalizer runs, no weak reference is
cleared, nothing is freed. Objects held by C code count as reachable.

Source: "Identifying reference cycles" of CPython's InternalDocs/garbage_collector.md.
"""

import gc
import sys
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

_BATCH: Final = 8192
"""Objects whose referents are fetched at once: enough to amortize the loop's overhead, and few
enough to keep the lists small."""

_Indices = npt.NDArray[np.int64]


class ReachabilityScan(NamedTuple):
    """The reachability of the program's objects.

    Attributes:
        unreachable: Those that a garbage collection would free.
        held_once: Those that no other object refers to, with one reference from elsewhere: a
            variable of running code, or C.
    """

    unreachable: list[object]
    held_once: list[object]


def scan_reachability() -> ReachabilityScan:
    """Scan all tracked objects, which takes one to two microseconds for each of them."""
    objects = gc.get_objects()
    # Before anything else here refers to them.
    n_references = np.fromiter(map(sys.getrefcount, objects), np.int64, len(objects))
    n_references -= next(map(sys.getrefcount, [object()]))
    index = _Index(objects)
    is_held_once = n_references == 1
    for indices in index.referents(range(len(objects))):
        held, times = np.unique(indices, return_counts=True)
        n_references[held] -= times
    is_reachable = n_references > 0
    is_held_once &= is_reachable
    _propagate(index, is_reachable)
    return ReachabilityScan(
        list(compress(objects, (~is_reachable).tolist())),
        list(compress(objects, is_held_once.tolist())),
    )


class _Index:
    """Indices of objects in a list, by their ids."""

    def __init__(self, objects: list[object]) -> None:
        self._objects = objects
        ids = np.fromiter(map(id, objects), np.int64, len(objects))
        self._order = np.argsort(ids)
        self._ids = ids[self._order]

    def referents(self, indices: Sequence[int]) -> Iterator[_Indices]:
        """Indices of what some objects refer to, one array per batch of objects.

        Untracked objects, such as numbers and strings, are not in the list and are left out.
        """
        for start in range(0, len(indices), _BATCH):
            batch = map(self._objects.__getitem__, indices[start : start + _BATCH])
            held = gc.get_referents(*batch)
            ids = np.fromiter(map(id, filter(gc.is_tracked, held)), np.int64)
            ids.sort()
            where = np.searchsorted(self._ids, ids).clip(max=len(self._ids) - 1)
            yield self._order[where[self._ids[where] == ids]]


def _propagate(index: _Index, is_reachable: npt.NDArray[np.bool_]) -> None:
    """Mark everything that reachable objects refer to, in place."""
    frontier: list[int] = np.flatnonzero(is_reachable).tolist()
    while frontier:
        found: list[int] = []
        for indices in index.referents(frontier):
            new = np.unique(indices[~is_reachable[indices]])
            is_reachable[new] = True
            found.extend(new.tolist())
        frontier = found
