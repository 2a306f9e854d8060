"""Which cycle keeps each of some unreachable objects, and what it is made of.

A cycle is a strongly connected component of "refers to". An object outside of any, such as a
tensor that an object of a cycle holds, is kept by the cycle from which it is nearest.

Source: R. Tarjan, "Depth-first search and linear graph algorithms", SIAM J. Comput. 1 (1972).
"""

import gc
import sys
from collections import deque
from collections.abc import Sequence
from types import CellType, FunctionType
from typing import Final

from profkit.capture.memory.holders.attributes import module_of, namespace_of, type_name
from profkit.capture.memory.holders.frames import place_of
from profkit.capture.memory.holders.keys import index_of

_STARTS: Final = 4
"""Objects of a component that a cycle is looked for through, the program's own classes first."""


class Cycles:
    """The cycles among some objects.

    Args:
        things: The objects; references to others are left out.
    """

    def __init__(self, things: Sequence[object]) -> None:
        self._things = things
        place = {id(thing): n for n, thing in enumerate(things)}
        self._held = [
            [place[id(one)] for one in gc.get_referents(thing) if id(one) in place]
            for thing in things
        ]
        self._component = components(self._held)
        self._members: dict[int, list[int]] = {}
        for one, component in enumerate(self._component):
            self._members.setdefault(component, []).append(one)
        self._kept_by = self._nearest()
        self._text: dict[int, tuple[str, ...]] = {}

    def of(self, place: int) -> tuple[str, ...]:
        """What the cycle that keeps an object goes through, the first repeated at the end.

        Args:
            place: The object's place among those given.

        Returns:
            Names of types, of functions and of their closures' variables, or nothing where no
            cycle keeps it.
        """
        component = self._kept_by[place]
        if component is None:
            return ()
        if component not in self._text:
            self._text[component] = self._described(component)
        return self._text[component]

    def _is_cycle(self, component: int) -> bool:
        members = self._members[component]
        return len(members) > 1 or members[0] in self._held[members[0]]

    def _nearest(self) -> list[int | None]:
        """Of each object the component of the nearest cycle that leads to it, or None."""
        kept_by: list[int | None] = [
            component if self._is_cycle(component) else None for component in self._component
        ]
        pending = deque(n for n, component in enumerate(kept_by) if component is not None)
        while pending:
            one = pending.popleft()
            for held in self._held[one]:
                if kept_by[held] is None:
                    kept_by[held] = kept_by[one]
                    pending.append(held)
        return kept_by

    def _described(self, component: int) -> tuple[str, ...]:
        members = sorted(self._members[component], key=lambda one: _strangeness(self._things[one]))
        cycles = [self._through(start, component) for start in members[:_STARTS]]
        shown = [_words([self._things[one] for one in cycle]) for cycle in cycles if cycle]
        return min(shown, key=lambda words: (len(words), words))

    def _through(self, start: int, component: int) -> list[int]:
        """A shortest cycle through an object of a component."""
        before: dict[int, int] = {}
        pending = deque([start])
        while pending:
            one = pending.popleft()
            for held in self._held[one]:
                if held == start:
                    return _back(before, one, start)
                if held not in before and self._component[held] == component:
                    before[held] = one
                    pending.append(held)
        return []


def components(held: Sequence[Sequence[int]]) -> list[int]:
    """The strongly connected component of each node of a graph, without recursion.

    Args:
        held: Of each node, the nodes that it leads to.
    """
    component = [-1] * len(held)
    number = [0] * len(held)
    lowest = [0] * len(held)
    path: list[int] = []
    count = n_components = 0
    for root in range(len(held)):
        work = [] if number[root] else [(root, 0)]
        while work:
            node, edge = work.pop()
            if edge == 0:
                count += 1
                number[node] = lowest[node] = count
                path.append(node)
            else:
                lowest[node] = min(lowest[node], lowest[held[node][edge - 1]])
            edge = _next_edge(node, edge, held, (number, lowest, component))
            if edge <= len(held[node]):
                work += [(node, edge), (held[node][edge - 1], 0)]
            elif lowest[node] == number[node]:
                member = -1
                while member != node:
                    member = path.pop()
                    component[member] = n_components
                n_components += 1
    return component


def _next_edge(
    node: int,
    edge: int,
    held: Sequence[Sequence[int]],
    state: tuple[list[int], list[int], list[int]],
) -> int:
    """Number, from 1, of the next edge to a node that is new; those to others are settled."""
    number, lowest, component = state
    for following in held[node][edge:]:
        edge += 1
        if not number[following]:
            return edge
        if component[following] < 0:
            lowest[node] = min(lowest[node], number[following])
    return len(held[node]) + 1


def _back(before: dict[int, int], last: int, start: int) -> list[int]:
    cycle = [last]
    while cycle[-1] != start:
        cycle.append(before[cycle[-1]])
    return cycle[::-1]


def _strangeness(thing: object) -> int:
    """How far something is from the program's own classes, which name a cycle best."""
    module = module_of(type(thing)).partition(".")[0]
    if module == "__main__" or (module and module not in sys.stdlib_module_names):
        return 0
    return 1 if issubclass(type(thing), (BaseException, FunctionType)) else 2


def _words(cycle: Sequence[object]) -> tuple[str, ...]:
    """What a cycle goes through, without what only holds an object's or a function's parts."""
    places = range(len(cycle))
    telling = [place for place in places if not _is_part(cycle, place)] or list(places)
    names = [_word(cycle, place) for place in telling]
    order = range(len(names))
    first = min(order, key=lambda n: (_strangeness(cycle[telling[n]]), names[n]))
    return (*names[first:], *names[:first], names[first])


def _word(cycle: Sequence[object], place: int) -> str:
    """The name of a type; of a function its own, and of a closure's cell that of its variable."""
    thing = cycle[place]
    if type(thing) is FunctionType:
        return f"function {place_of(thing.__code__).partition(' at ')[0]}"
    variable = _variable_of(cycle, place)
    return f"cell {variable} of its closure" if variable else type_name(type(thing))


def _variable_of(cycle: Sequence[object], place: int) -> str:
    """What the function before calls a cell of its closure; empty for anything else."""
    function, closure, cell = (cycle[(place - back) % len(cycle)] for back in (2, 1, 0))
    if type(cell) is not CellType or type(function) is not FunctionType:
        return ""
    if function.__closure__ is not closure:
        return ""
    index = index_of(closure, cell)
    return "" if index is None else function.__code__.co_freevars[index]


def _is_part(cycle: Sequence[object], place: int) -> bool:
    holder, thing = cycle[place - 1], cycle[place]
    if type(thing) is CellType:
        return not _variable_of(cycle, place)
    if type(thing) is dict:
        return len(cycle) > 1 and namespace_of(holder) is thing
    return type(holder) is FunctionType and holder.__closure__ is thing
