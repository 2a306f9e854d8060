"""Tensors that unreachable cycles hold until the garbage collector comes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from profkit.capture.memory.holders import autograd_graphs
from profkit.capture.memory.holders.frames import locals_of, running
from profkit.capture.memory.holders.native_refs import live_tensors
from profkit.capture.memory.holders.reference_cycles import Cycles
from profkit.capture.memory.holders.unreachable import quiet_collector, survey

EXAMPLES: Final = 3
"""Tensors of a group that are given as examples, the largest first."""


@dataclass(frozen=True)
class Group:
    """Tensors that cycles of one make hold.

    Attributes:
        cycle: What the cycle goes through, as :meth:`~profkit.capture.memory.holders.reference_cycles.Cycles.of`
            names it; the first one repeated at the end.
        bytes: Of the storages that would be freed, each once.
        n: How many tensors.
        examples: Some of the tensors, the largest first. Holding one holds up its collection.
        ids: Ids of all of the tensors.
    """

    cycle: tuple[str, ...]
    bytes: int
    n: int
    examples: tuple[object, ...]
    ids: frozenset[int]


@dataclass(frozen=True)
class Garbage:
    """All tensors that wait for the garbage collector.

    Attributes:
        bytes: Of the storages that a collection would free, those behind graphs included.
        n: How many tensors.
        groups: By the make of the cycle, the most bytes first.
    """

    bytes: int
    n: int
    groups: tuple[Group, ...]


def waiting() -> Garbage:
    """What a collection would free at this moment, without collecting.

    It costs one to two microseconds for each object that Python's collector tracks.
    """
    with quiet_collector():
        found = survey()
        things = found.unreachable
        places = [n for n, thing in enumerate(things) if autograd_graphs.is_tensor(thing)]
        if not places:
            return Garbage(0, 0, ())
        # A tensor that nothing in Python refers to is kept by C++: as the base of a view, by a
        # graph. Whether it stays depends on those, which are asked one by one.
        beside = {id(thing) for thing in found.held_once} - _ids_of_locals()
        beside |= {id(things[place]) for place in places}
        sizes = _Sizes([one for one in live_tensors() if id(one) not in beside])
        return _grouped(things, places, sizes)


def _ids_of_locals() -> set[int]:
    return {id(value) for frame in running() for value in locals_of(frame).values()}


def _grouped(things: Sequence[object], places: list[int], sizes: "_Sizes") -> Garbage:
    cycles = Cycles(things)
    by_cycle: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for place in places:
        by_cycle.setdefault(cycles.of(place), []).append((sizes.freed_with(things[place]), place))
    groups = [_group(cycle, sized, things) for cycle, sized in by_cycle.items()]
    groups.sort(key=lambda group: (-group.bytes, group.cycle))
    return Garbage(sum(group.bytes for group in groups), len(places), tuple(groups))


def _group(cycle: tuple[str, ...], sized: list[tuple[int, int]], things: Sequence[object]) -> Group:
    largest = sorted(sized, reverse=True)[:EXAMPLES]
    examples = tuple(things[place] for _, place in largest)
    ids = frozenset(id(things[place]) for _, place in sized)
    return Group(cycle, sum(size for size, _ in sized), len(sized), examples, ids)


class _Sizes:
    """Bytes that go with a tensor: those that neither a live tensor nor its graph keeps.

    Args:
        live: The tensors that stay.
    """

    def __init__(self, live: Sequence[Any]) -> None:
        self._counted: set[int] = set()
        self._walk = autograd_graphs.Walk()
        for tensor in live:
            self._storage(tensor)
            gradient = autograd_graphs.gradient_of(tensor)
            if gradient is not None:
                self._storage(gradient)
        for tensor in live:
            self._graph(tensor)

    def freed_with(self, tensor: Any) -> int:  # noqa: ANN401
        """Bytes that a tensor and the graph behind it free, less what is counted already."""
        return self._storage(tensor) + self._graph(tensor)

    def _storage(self, tensor: Any) -> int:  # noqa: ANN401
        storage = autograd_graphs.storage_of(tensor)
        if storage is None or storage[0] in self._counted:
            return 0
        self._counted.add(storage[0])
        return storage[1]

    def _graph(self, tensor: Any) -> int:  # noqa: ANN401
        node = autograd_graphs.grad_fn_of(tensor)
        if node is None:
            return 0
        return sum(self._walk.bytes_kept_by(one, self._counted) for one in self._walk.nodes([node]))
