"""Tensors in unreachable reference cycles, which stay until the garbage collector runs.

Unreachable objects are found as the collector finds them, by subtracting from each object's
reference count the references from other objects, but without collecting: no finalizer runs, no
weak reference is cleared, nothing is freed. Objects held by C code count as reachable.

Source: "Identifying reference cycles" of CPython's InternalDocs/garbage_collector.md.
"""

import gc
import sys
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from profkit.capture.memory.holders import autograd_graphs
from profkit.capture.memory.holders.reference_cycles import Cycles
from profkit.capture.memory.holders.untracked_containers import live_tensors
from profkit.capture.process.frames import local_values
from profkit.capture.process.objects import referents
from profkit.readers.process_memory import garbage_collection_paused

_BATCH: Final = 8192
"""Objects whose referents are fetched at once: enough to amortize the loop's overhead, and few
enough to keep the lists small."""

_Indices = npt.NDArray[np.int64]


class Garbage(NamedTuple):
    """Tensors kept by cycles that go through the same types.

    Attributes:
        cycle: What the cycle goes through, the first repeated at the end.
        bytes: Bytes of the storages that a collection would free, those saved by graphs included.
        ids: Ids of the tensors.
    """

    cycle: tuple[str, ...]
    bytes: int
    ids: frozenset[int]


def find_garbage() -> list[Garbage]:
    """Find what a garbage collection would free now, without collecting; most bytes first.

    It takes one to two microseconds for each tracked object.
    """
    with garbage_collection_paused():
        scan = scan_reachability()
        things = scan.unreachable
        indices = [n for n, thing in enumerate(things) if autograd_graphs.is_tensor(thing)]
        if not indices:
            return []

        # A tensor without Python referrers is kept by C++, as the base of a view or by a graph.
        # Whether it stays depends on those, which are examined one by one.
        undecided = {id(thing) for thing in scan.held_once} - set(map(id, local_values()))
        undecided |= {id(things[index]) for index in indices}
        freed = _FreedBytes([tensor for tensor in live_tensors() if id(tensor) not in undecided])

        cycles = Cycles(things)
        by_cycle: dict[tuple[str, ...], list[int]] = {}
        for index in indices:
            by_cycle.setdefault(cycles.describe(index), []).append(index)

        n_bytes = {index: freed.count(things[index]) for index in indices}
        garbage = [
            Garbage(
                cycle, sum(n_bytes[n] for n in members), frozenset(id(things[n]) for n in members)
            )
            for cycle, members in by_cycle.items()
        ]
        return sorted(garbage, key=lambda group: (-group.bytes, group.cycle))


class _FreedBytes:
    """Bytes freed with a tensor: those that no live tensor and no live graph keeps."""

    def __init__(self, live: Sequence[Any]) -> None:
        self._counted: set[int] = set()
        self._walk = autograd_graphs.GraphWalk()
        for tensor in live:
            self._count_storage(tensor)
            gradient = autograd_graphs.gradient_of(tensor)
            if gradient is not None:
                self._count_storage(gradient)
        for tensor in live:
            self._count_graph(tensor)

    def count(self, tensor: Any) -> int:  # noqa: ANN401
        """Count the bytes freed with a tensor and the graph behind it, except counted ones."""
        return self._count_storage(tensor) + self._count_graph(tensor)

    def _count_storage(self, tensor: Any) -> int:  # noqa: ANN401
        storage = autograd_graphs.storage_of(tensor)
        if storage is None or storage[0] in self._counted:
            return 0
        self._counted.add(storage[0])
        return storage[1]

    def _count_graph(self, tensor: Any) -> int:  # noqa: ANN401
        return self._walk.sum_saved_bytes(autograd_graphs.grad_fns_of([tensor]), self._counted)


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

    # Less the references from other tracked objects: what is left comes from outside.
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
        """Yield the indices of what some objects refer to, one array per batch of objects.

        Untracked objects, such as numbers and strings, are not in the list and are left out.
        """
        for start in range(0, len(indices), _BATCH):
            batch = map(self._objects.__getitem__, indices[start : start + _BATCH])
            held = referents(*batch)
            ids = np.fromiter(map(id, filter(gc.is_tracked, held)), np.int64)
            ids.sort()
            position = np.searchsorted(self._ids, ids).clip(max=len(self._ids) - 1)
            yield self._order[position[self._ids[position] == ids]]


def _propagate(index: _Index, is_reachable: npt.NDArray[np.bool_]) -> None:
    """Mark everything that reachable objects refer to, in place."""
    frontier: list[int] = np.flatnonzero(is_reachable).tolist()
    while frontier:
        next_frontier: list[int] = []
        for indices in index.referents(frontier):
            new = np.unique(indices[~is_reachable[indices]])
            is_reachable[new] = True
            next_frontier.extend(new.tolist())
        frontier = next_frontier
