"""Objects that nothing reaches any more and that wait for the garbage collector.

Found as the collector itself finds them, by subtracting from each object's reference count the
references that come from other objects, but without collecting: no finalizer runs, no weak
reference is cleared, nothing is freed. What C code holds counts as reached.

Source: "Identifying reference cycles" of CPython's InternalDocs/garbage_collector.md.
"""

import contextlib
import gc
import sys
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

_BATCH: Final = 8192
"""Objects whose references are taken at once: enough to make the loop's own cost vanish, and few
enough to keep the lists small."""

_Places = npt.NDArray[np.int64]


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """While it is open, the collector does not start by itself.

    What is allocated for a look would make it start, and it would run the program's finalizers.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class ReachabilityScan(NamedTuple):
    """How the objects of a program are held.

    Attributes:
        unreachable: Those that wait for the garbage collector.
        held_once: Those that no other object refers to, and that have one reference from
            elsewhere: a variable of running code, or C.
    """

    unreachable: list[object]
    held_once: list[object]


def survey() -> ReachabilityScan:
    """Look at all objects that the collector lists.

    It costs one to two microseconds for each of them.
    """
    objects = gc.get_objects()
    # Before anything else here refers to them.
    n_references = np.fromiter(map(sys.getrefcount, objects), np.int64, len(objects))
    n_references -= next(map(sys.getrefcount, [object()]))
    index = _Index(objects)
    is_held_once = n_references == 1
    for places in index.referents(range(len(objects))):
        held, times = np.unique(places, return_counts=True)
        n_references[held] -= times
    is_reached = n_references > 0
    is_held_once &= is_reached
    _spread(index, is_reached)
    return ReachabilityScan(
        list(compress(objects, (~is_reached).tolist())),
        list(compress(objects, is_held_once.tolist())),
    )


class _Index:
    """Where each object stands in a list of objects, by its id."""

    def __init__(self, objects: list[object]) -> None:
        self._objects = objects
        ids = np.fromiter(map(id, objects), np.int64, len(objects))
        self._order = np.argsort(ids)
        self._ids = ids[self._order]

    def referents(self, places: Sequence[int]) -> Iterator[_Places]:
        """Places of what some objects refer to, a batch of objects at a time.

        What is in no cycle, such as a number or a text, is not in the list and has no place.

        Args:
            places: Places of the objects.
        """
        for start in range(0, len(places), _BATCH):
            batch = map(self._objects.__getitem__, places[start : start + _BATCH])
            held = gc.get_referents(*batch)
            ids = np.fromiter(map(id, filter(gc.is_tracked, held)), np.int64)
            ids.sort()
            where = np.searchsorted(self._ids, ids).clip(max=len(self._ids) - 1)
            yield self._order[where[self._ids[where] == ids]]


def _spread(index: _Index, is_reached: npt.NDArray[np.bool_]) -> None:
    """Mark all that is referred to by what is marked."""
    frontier: list[int] = np.flatnonzero(is_reached).tolist()
    while frontier:
        found: list[int] = []
        for places in index.referents(frontier):
            new = np.unique(places[~is_reached[places]])
            is_reached[new] = True
            found.extend(new.tolist())
        frontier = found
