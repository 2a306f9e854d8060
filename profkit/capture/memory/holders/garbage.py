"""Tensors in unreachable reference cycles, which stay until the garbage collector runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from profkit.capture.memory.holders import autograd_graphs
from profkit.capture.memory.holders.frames import local_values
from profkit.capture.memory.holders.reference_cycles import Cycles
from profkit.capture.memory.holders.unreachable import paused_collector, scan_reachability
from profkit.capture.memory.holders.untracked_containers import live_tensors

EXAMPLES: Final = 3
"""Tensors of a group that are returned as examples, the largest first."""


@dataclass(frozen=True)
class GarbageGroup:
    """Tensors kept by cycles that go through the same types.

    Attributes:
        cycle: What the cycle goes through, the first repeated at the end.
        bytes: Bytes of the storages that would be freed, each once.
        n: Number of tensors.
        examples: Some of the tensors. Holding one prevents its collection.
        ids: Ids of all the tensors.
    """

    cycle: tuple[str, ...]
    bytes: int
    n: int
    examples: tuple[object, ...]
    ids: frozenset[int]


@dataclass(frozen=True)
class Garbage:
    """All tensors in unreachable cycles.

    Attributes:
        bytes: Bytes of the storages that a collection would free, including those saved by graphs.
        n: Number of tensors.
        groups: By what the cycle goes through, the most bytes first.
    """

    bytes: int
    n: int
    groups: tuple[GarbageGroup, ...]


def find_garbage() -> Garbage:
    """What a garbage collection would free at this moment, without collecting.

    It takes one to two microseconds for each tracked object.
    """
    with paused_collector():
        scan = scan_reachability()
        things = scan.unreachable
        indices = [n for n, thing in enumerate(things) if autograd_graphs.is_tensor(thing)]
        if not indices:
            return Garbage(0, 0, ())
        # A tensor without Python referrers is kept by C++, as the base of a view or by a graph.
        # Whether it stays depends on those, which are examined one by one.
        undecided = {id(thing) for thing in scan.held_once} - set(map(id, local_values()))
        undecided |= {id(things[index]) for index in indices}
        sizes = _FreedBytes([one for one in live_tensors() if id(one) not in undecided])
        return _grouped(things, indices, sizes)


def _grouped(things: Sequence[object], indices: list[int], sizes: "_FreedBytes") -> Garbage:
    cycles = Cycles(things)
    by_cycle: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for index in indices:
        by_cycle.setdefault(cycles.of(index), []).append((sizes.of(things[index]), index))
    groups = [_group(cycle, sized, things) for cycle, sized in by_cycle.items()]
    groups.sort(key=lambda group: (-group.bytes, group.cycle))
    return Garbage(sum(group.bytes for group in groups), len(indices), tuple(groups))


def _group(
    cycle: tuple[str, ...], sized: list[tuple[int, int]], things: Sequence[object]
) -> GarbageGroup:
    largest = sorted(sized, reverse=True)[:EXAMPLES]
    examples = tuple(things[index] for _, index in largest)
    ids = frozenset(id(things[index]) for _, index in sized)
    return GarbageGroup(cycle, sum(size for size, _ in sized), len(sized), examples, ids)


class _FreedBytes:
    """Bytes freed with a tensor: those that no live tensor and no live graph keeps.

    Args:
        live: The tensors that stay.
    """

    def __init__(self, live: Sequence[Any]) -> None:
        self._counted: set[int] = set()
        self._walk = autograd_graphs.GraphWalk()
        for tensor in live:
            self._storage(tensor)
            gradient = autograd_graphs.gradient_of(tensor)
            if gradient is not None:
                self._storage(gradient)
        for tensor in live:
            self._graph(tensor)

    def of(self, tensor: Any) -> int:  # noqa: ANN401
        """Bytes freed with a tensor and the graph behind it, less those counted before."""
        return self._storage(tensor) + self._graph(tensor)

    def _storage(self, tensor: Any) -> int:  # noqa: ANN401
        storage = autograd_graphs.storage_of(tensor)
        if storage is None or storage[0] in self._counted:
            return 0
        self._counted.add(storage[0])
        return storage[1]

    def _graph(self, tensor: Any) -> int:  # noqa: ANN401
        return self._walk.saved_bytes(autograd_graphs.grad_fns_of([tensor]), self._counted)
