"""Finds the reference cycle that keeps each of some unreachable objects alive, and names it.

A cycle is a strongly connected component of "refers to". An object outside of any, such as a
tensor that an object of a cycle holds, is attributed to the nearest cycle that leads to it.

Source: R. Tarjan, "Depth-first search and linear graph algorithms", SIAM J. Comput. 1 (1972).
"""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import CellType, FunctionType
from typing import Final

from profkit.capture.memory.holders.attributes import module_of, namespace_of, type_name
from profkit.capture.memory.holders.containers import find_index
from profkit.capture.process.frames import describe_code
from profkit.capture.process.objects import referents

_MAX_STARTS: Final = 4
"""Objects of a component through which a cycle is searched, the program's own classes first."""


class Cycles:
    """The reference cycles among some objects; references to others are ignored."""

    def __init__(self, things: Sequence[object]) -> None:
        self._things = things
        index = {id(thing): n for n, thing in enumerate(things)}
        self._held = [
            [index[id(referent)] for referent in referents(thing) if id(referent) in index]
            for thing in things
        ]
        self._component = find_components(self._held)
        self._members: dict[int, list[int]] = {}
        for n, component in enumerate(self._component):
            self._members.setdefault(component, []).append(n)
        self._cycle_of = self._find_nearest_cycles()
        self._names: dict[int, tuple[str, ...]] = {}

    def describe(self, index: int) -> tuple[str, ...]:
        """Describe the cycle that keeps an object alive, by the object's index.

        Returns:
            Names of types, of functions and of closure variables, the first repeated at the end;
            empty if no cycle keeps it.
        """
        component = self._cycle_of[index]
        if component is None:
            return ()
        if component not in self._names:
            self._names[component] = self._name_component(component)
        return self._names[component]

    def _is_cycle(self, component: int) -> bool:
        members = self._members[component]
        return len(members) > 1 or members[0] in self._held[members[0]]

    def _find_nearest_cycles(self) -> list[int | None]:
        """Find for each object the component of the nearest cycle that leads to it, or None."""
        nearest: list[int | None] = [
            component if self._is_cycle(component) else None for component in self._component
        ]

        # Breadth first from all cycles at once: the nearest one comes first.
        pending = deque(n for n, component in enumerate(nearest) if component is not None)
        while pending:
            index = pending.popleft()
            for held in self._held[index]:
                if nearest[held] is None:
                    nearest[held] = nearest[index]
                    pending.append(held)
        return nearest

    def _name_component(self, component: int) -> tuple[str, ...]:
        members = sorted(
            self._members[component], key=lambda index: _foreignness(self._things[index])
        )
        cycles = [
            find_shortest_cycle(index, self._held.__getitem__) for index in members[:_MAX_STARTS]
        ]
        names_of_cycles = [
            _name_cycle([self._things[index] for index in cycle]) for cycle in cycles if cycle
        ]
        return min(names_of_cycles, key=lambda names: (len(names), names))


def find_shortest_cycle(start: int, following: Callable[[int], Iterable[int]]) -> list[int]:
    """Find a shortest cycle through a node of a graph, beginning with it; empty if there is none.

    Args:
        following: The nodes that a node leads to.
    """
    before: dict[int, int] = {}
    pending = deque([start])

    # Breadth first, so that the first way back is a shortest one.
    while pending:
        node = pending.popleft()
        for target in following(node):
            if target == start:
                cycle = [node]
                while cycle[-1] != start:
                    cycle.append(before[cycle[-1]])
                return cycle[::-1]
            if target not in before:
                before[target] = node
                pending.append(target)
    return []


def find_components(held: Sequence[Sequence[int]]) -> list[int]:
    """Find the strongly connected component of each node of a graph, without recursion.

    Args:
        held: For each node, the nodes that it leads to.
    """
    component = [-1] * len(held)
    number = [0] * len(held)
    lowest = [0] * len(held)  # of a node that it leads to and whose component is open
    path: list[int] = []

    count = n_components = 0
    for root in range(len(held)):
        call_stack = [] if number[root] else [(root, iter(held[root]))]
        while call_stack:
            node, edges = call_stack[-1]
            if not number[node]:
                count += 1
                number[node] = lowest[node] = count
                path.append(node)

            unnumbered = next((target for target in edges if not number[target]), None)
            if unnumbered is not None:
                call_stack.append((unnumbered, iter(held[unnumbered])))
                continue

            call_stack.pop()
            reached = (lowest[target] for target in held[node] if component[target] < 0)
            lowest[node] = min(lowest[node], min(reached, default=lowest[node]))

            # It leads to no earlier node that is still open: it and all above it are a component.
            if lowest[node] == number[node]:
                while component[node] < 0:
                    component[path.pop()] = n_components
                n_components += 1
    return component


def _foreignness(thing: object) -> int:
    """Rank a type as a name for a cycle: 0 for the program's classes, which name it best."""
    module = module_of(type(thing)).partition(".")[0]
    if module == "__main__" or (module and module not in sys.stdlib_module_names):
        return 0
    return 1 if issubclass(type(thing), (BaseException, FunctionType)) else 2


def _name_cycle(cycle: Sequence[object]) -> tuple[str, ...]:
    """Name what a cycle goes through, without namespaces, closure tuples and unnamed cells."""
    indices = range(len(cycle))
    named = [index for index in indices if not _is_internal(cycle, index)] or list(indices)
    names = [_name_object(cycle, index) for index in named]
    first = min(range(len(names)), key=lambda n: (_foreignness(cycle[named[n]]), names[n]))
    return (*names[first:], *names[:first], names[first])


def _name_object(cycle: Sequence[object], index: int) -> str:
    """Return the name of a function, of a closure variable, or else of the object's type."""
    thing = cycle[index]
    if type(thing) is FunctionType:
        return f"function {describe_code(thing.__code__).partition(' at ')[0]}"
    variable = _closure_variable(cycle, index)
    return f"cell {variable} of its closure" if variable else type_name(type(thing))


def _closure_variable(cycle: Sequence[object], index: int) -> str:
    """Return the variable that a closure's cell belongs to; empty for anything else."""
    function, closure, cell = (cycle[(index - back) % len(cycle)] for back in (2, 1, 0))
    if type(cell) is not CellType or type(function) is not FunctionType:
        return ""
    if function.__closure__ is not closure:
        return ""
    position = find_index(closure, cell)
    return "" if position is None else function.__code__.co_freevars[position]


def _is_internal(cycle: Sequence[object], index: int) -> bool:
    holder, thing = cycle[index - 1], cycle[index]
    if type(thing) is CellType:
        return not _closure_variable(cycle, index)
    if type(thing) is dict:
        return len(cycle) > 1 and namespace_of(holder) is thing
    return type(holder) is FunctionType and holder.__closure__ is thing
